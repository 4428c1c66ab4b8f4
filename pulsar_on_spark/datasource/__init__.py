"""The Spark face: `format("pulsarpy")`, batch and streaming, read and write, and the session it runs best in.

May import everything below it: `topic`, `ledger`, `metadata`, `model`; nothing below uses Spark's interfaces. Start
reading at `session`, then at `columns`, which defines a message's columns for Spark users.

This file imports nothing: Spark's Python daemon loads `worker_daemon` from here before it forks workers.
"""
