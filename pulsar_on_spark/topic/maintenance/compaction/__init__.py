"""Topic compaction: the newest message of each key is stored apart from the log, and read instead of it.

    log (and the former compacted ledger) ──> newest place of each key ──> the rows at these places ──> one commit

`compact.py` runs a compaction, `managed_ledger.chain.compaction_record` reads its record, and `reading.py` reads the
compacted ledger. The decisions are pure functions of columns: `newest.py` is the first pass, `survivors.py` the second.
"""
