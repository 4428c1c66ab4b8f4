"""Registration of `format("pulsarpy")`, which Spark finds by this module's name.

Spark imports every top-level module whose name starts with `pyspark_` when a session first looks up a Python data
source of any format. So this module imports only one other module. A broken installation must not break the session's
other formats: the reason is logged, and Spark then reports that it cannot find the format.
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
