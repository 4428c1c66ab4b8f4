"""Apache Pulsar's architecture as a Spark-native streaming storage engine.

All topics are in one folder, the root: messages in replicated Arrow segments, metadata in Delta tables. Spark reads and
writes topics through `format("pulsarpy")`. The layers from the top are `cli` and `jobs`, `broker` and `datasource`,
`root`, `topic`, `ledger`, `metadata` and `protocol`, `storage`, `model`; a module imports only lower layers. Start
reading at `model`, or at `datasource` for the Spark side.

The names in `__all__` are imported at their first use, so that importing this package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsar_on_spark.datasource.history import history, views
    from pulsar_on_spark.datasource.session import session_confs, spark_session
    from pulsar_on_spark.datasource.source import PulsarDataSource
    from pulsar_on_spark.model import errors
    from pulsar_on_spark.model.ids import MessageId
    from pulsar_on_spark.model.names import TopicName
    from pulsar_on_spark.model.quorum import Quorum
    from pulsar_on_spark.root import Root

    __version__: str

__all__ = [
    "MessageId",
    "PulsarDataSource",
    "Quorum",
    "Root",
    "TopicName",
    "__version__",
    "errors",
    "history",
    "session_confs",
    "spark_session",
    "views",
]

_HOMES = {
    "MessageId": "pulsar_on_spark.model.ids",
    "PulsarDataSource": "pulsar_on_spark.datasource.source",
    "Quorum": "pulsar_on_spark.model.quorum",
    "Root": "pulsar_on_spark.root",
    "TopicName": "pulsar_on_spark.model.names",
    "history": "pulsar_on_spark.datasource.history",
    "session_confs": "pulsar_on_spark.datasource.session",
    "spark_session": "pulsar_on_spark.datasource.session",
    "views": "pulsar_on_spark.datasource.history",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("pulsar_on_spark.model.errors")
    if name == "__version__":
        from importlib.metadata import version

        return version("pulsar-on-spark")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
