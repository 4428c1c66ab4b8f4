"""The Spark interface: `format("pulsarpy")` for batch and streaming reads and writes, and a well-configured session.

It may import all lower packages, such as `topic`, `ledger`, `metadata` and `model`; none of them uses Spark's
interfaces. Start reading at `session`, then at `columns`, which defines a message's columns for Spark users.

This file imports nothing: Spark's Python daemon loads `worker_daemon` from here before it forks workers.
"""
