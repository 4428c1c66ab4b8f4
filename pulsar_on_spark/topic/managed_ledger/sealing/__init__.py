"""From journals to sealed segments: sealing, trimming, and the removal of dead incarnations' journals."""
