"""Topics on top of ledgers and metadata: chains, attaching writes, reading, cursors, subscriptions, housekeeping.

It may import `ledger`, `protocol`, `metadata` and `model`, and knows nothing of Spark. Start reading at
`root.py` (the Python API of a root), then `chain.py` (where a topic's entries are) and `attach.py` (how a write
becomes visible).
"""
