"""Reading for consumers: the chain of each loaded topic as it changes, and the entries in it.

`follower.py` polls the metadata and keeps each topic's `LedgerChain` up to date, including Spark's commits. `reader.py`
returns entries from memory, or reads them off the event loop (`catch_up.py`): raw from journals, or rebuilt from sealed
segments. The package may import `topic` and the packages below; start reading at these two modules.
"""
