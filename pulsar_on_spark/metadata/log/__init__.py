"""A Delta table as a durable log of rows, written by this project (docs/adr/0017).

Start reading at `chain.py`, which has the rules, and `table_log.py`, the handle on one table. `opening.py` reads a log
from its beginning, `cleaning.py` deletes old entries. `local_log.py` and `object_log.py` are the places where a log is
kept. `folding.py` replaces compaction.
"""
