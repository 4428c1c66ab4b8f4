"""Topic compaction: of each key the newest message, kept apart from the log and read in place of it.

    log (and the compacted ledger before) ──> newest place of each key ──> the rows at these places ──> one commit

`compact.py` is the run, `managed_ledger.chain.compaction_record` its record, `reading.py` reads its ledger. What
decides is pure and in columns: `newest.py` is the first pass, `survivors.py` the second.
"""
