"""The metadata store: typed records in two Delta tables, changed by compare-and-set, durable before they are reported.

It imports only `storage` and `model`, and writes Delta tables itself, without a JVM. Start reading at `store.py`, then
at `log` (one table as a durable log of rows) and `current.py` (the current rows of the tables, for users).
"""
