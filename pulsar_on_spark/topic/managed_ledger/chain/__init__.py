"""The chain of a topic's ledgers: where its entries are, in segments, compacted or still in journals."""
