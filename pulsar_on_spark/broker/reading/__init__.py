"""What a broker reads for its consumers: the shape of a topic's chain as it changes, and the entries in it.

`follower.py` looks at the metadata and keeps each topic's `LedgerChain` up to date, Spark's commits included.
`reader.py` gives entries from memory, else reads them off the event loop (`catch_up.py`): raw from journals, or made
again from sealed segments. It may import `topic` and what is below it; start reading at these two.
"""
