"""From journals to sealed segments: sealing, trimming, and clearing away what a dead incarnation left."""
