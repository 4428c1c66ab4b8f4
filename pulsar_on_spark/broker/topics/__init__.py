"""Loaded topics of a broker: loading and creation, schemas, compaction, and changes by other processes."""
