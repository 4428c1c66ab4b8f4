"""The Spark interface: `format("pulsarpy")` for batch and streaming reads and writes, and a well-configured session.

This package may import all lower packages, such as `topic`, `ledger`, `metadata` and `model`, which do not use Spark's
interfaces. Start reading at `session`, then at `columns`, which defines a message's columns for Spark users.

This file imports nothing, because Spark's Python daemon loads the module `worker_daemon` of this package before it
forks workers.
"""
