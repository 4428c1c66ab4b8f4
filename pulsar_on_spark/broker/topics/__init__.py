"""The topics that a broker has loaded or makes, their schemas and compaction, and what others do to them."""
