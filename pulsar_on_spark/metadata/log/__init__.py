"""A Delta table as a durable log of rows.

Start reading at `delta_log.py`; `folding.py` replaces compaction, `damage.py` checks and repairs the log after a power
cut.
"""
