"""The ledger store: sealed Arrow segment files and the journal, in quorum-replicated copies on storage paths.

It imports `metadata` (for its records), `storage` and `model`, and is independent of topics, Spark and Delta.
`segments` and `journal` do not import each other.
"""
