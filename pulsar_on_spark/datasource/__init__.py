"""The Spark face: `format("pulsarpy")`, batch and streaming, read and write, and the session it runs best in.

May import everything below it: `topic`, `ledger`, `metadata`, `model`; nothing below knows Spark's interfaces.
Start reading at `session`, then at `columns`, which says what a Spark user sees of a message.
"""

from pulsar_on_spark.datasource.source import PulsarDataSource

__all__ = ["PulsarDataSource"]
