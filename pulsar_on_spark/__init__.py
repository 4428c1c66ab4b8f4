"""Apache Pulsar's architecture as a Spark-native streaming storage engine.

Topics live in a folder, the root: messages in replicated Arrow segments, metadata in Delta tables, and Spark reads and
writes them through `format("pulsarpy")`. The packages, from the top: `cli` and `jobs`, `broker` and `datasource`,
`root`, `topic`, `ledger`, `metadata` and `protocol`, `storage`, `model`; imports point down only. Start reading at
`model`, or at `datasource` for the Spark side.

What stands in `__all__` is loaded at its first use, so that importing the package is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsar_on_spark.datasource.session import session_confs, spark_session
    from pulsar_on_spark.root import Root

__all__ = ["Root", "session_confs", "spark_session"]

_HOMES = {
    "Root": "pulsar_on_spark.root",
    "session_confs": "pulsar_on_spark.datasource.session",
    "spark_session": "pulsar_on_spark.datasource.session",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
