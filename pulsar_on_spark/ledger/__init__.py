"""The ledger store: sealed Arrow segment files and a write-ahead journal, in replicated copies on storage paths.

It imports `metadata` (for its records), `storage` and `model`, and is independent of topics, Spark and Delta.
`segments` and `journal` do not import each other.
"""
