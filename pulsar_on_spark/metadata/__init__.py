"""The metadata store: typed records in two Delta tables, changed by compare-and-set, durable before they are reported.

It imports `storage` and `model` only, and writes Delta by itself, without a JVM. Start reading at `store.py`, then
`log` (one table as a durable log of rows) and `current.py` (the tables for users).
"""
