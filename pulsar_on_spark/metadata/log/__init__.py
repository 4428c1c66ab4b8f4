"""A Delta table as a durable log of rows, written by pulsar_on_spark itself (docs/adr/0017).

Start reading at `chain.py`, which has the rules of commits, and `table_log.py`, an open table. `opening.py` reads a log
from its newest checkpoint on, `cleaning.py` deletes old entries. `local_log.py` and `object_log.py` keep a log in a
folder or on an object store. `folding.py` removes superseded rows.
"""
