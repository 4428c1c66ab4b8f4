"""From a SEND to its receipt: producers, deduplication, and the way into the journal."""
