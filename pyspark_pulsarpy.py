"""Lets Spark find `format("pulsarpy")` without registering it.

Spark imports every top-level module whose name starts with `pyspark_` when a session first looks up a Python data
source, whatever format is asked for. Hence no more than one import here. A broken installation must not take the
session's other formats with it: the reason is logged, and Spark then reports that it cannot find the format.
"""

import logging

__all__ = ["DefaultSource"]

try:
    from pulsar_on_spark.datasource.source import PulsarDataSource as DefaultSource
except Exception as error:
    logging.getLogger("pulsar_on_spark").error(
        'format("pulsarpy") is not available, because importing pulsar_on_spark.datasource failed: %s: %s',
        type(error).__name__,
        error,
    )
