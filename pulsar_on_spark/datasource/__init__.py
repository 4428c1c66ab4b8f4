"""The Spark interface: `format("pulsarpy")` for batch and streaming reads and writes, and a well-configured session.

May import everything below it: `topic`, `ledger`, `metadata`, `model`. Nothing below uses Spark's interfaces. Start
reading at `session`, then at `columns`, which defines a message's columns for Spark users.

This file imports nothing: Spark's Python daemon loads `worker_daemon` from here before it forks workers.
"""
