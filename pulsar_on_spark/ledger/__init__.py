"""The ledger store: sealed Arrow segment files, kept in quorum-replicated copies on storage paths.

It imports `metadata` (for the file record) and `model`, Arrow and the operating system through `files`; it knows
nothing of topics, Spark or Delta. Start reading at `segment_format`, then `segment_writer` and `segment_reader`.
"""
