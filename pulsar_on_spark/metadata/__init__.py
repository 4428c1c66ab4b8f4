"""The metadata store: typed records in two Delta tables, changed by compare-and-set, durable before they are reported.

It may import `model` only, and goes through delta-rs, never a JVM. Start reading at `store.py`, then `delta_log.py`
(one table as a durable log of rows), `folding.py` (what replaces compaction), `repair.py` (after a power cut) and
`current.py` (the users' side).
"""
