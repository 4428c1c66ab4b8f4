"""The chain of a topic's ledgers: the segments, compacted ledgers and journals that hold its entries."""
