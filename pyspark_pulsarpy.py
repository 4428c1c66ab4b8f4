"""Lets Spark find `format("pulsarpy")` without registering it.

Spark imports every top-level module whose name starts with `pyspark_` when a session first looks up a Python data
source, whatever format is asked for. Hence no more than one import here, and an installation that is broken
must not take the other formats of the session with it: `import pulsar_on_spark.datasource` shows what is wrong.
"""

import contextlib

with contextlib.suppress(Exception):
    from pulsar_on_spark.datasource import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]
