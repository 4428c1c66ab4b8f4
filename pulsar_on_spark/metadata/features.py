"""Features of roots: what an older program must know before it may use a root (docs/adr/0018)."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.metadata.records import RootRecord
from pulsar_on_spark.metadata.state import View

OBJECT_PATHS: Final = "object-paths"
"""Storage paths on object stores, of one host, or of one role."""
COPY_GENERATIONS: Final = "copy-generations"
"""Copies that repair made under names of their own."""
FEATURES: Final = frozenset({OBJECT_PATHS, COPY_GENERATIONS})
"""The features that this version knows."""
ROOT_KEY: Final = "root"


def using(view: View, feature: str) -> tuple[RootRecord, ...]:
    """Return the root's record with a feature that readers must know; nothing if it has it already.

    The commit that uses the feature puts it, under `ROOT_KEY`.
    """
    record = view.get(RootRecord, "root")
    if record is None or feature in record.features:
        return ()
    return (record.model_copy(update={"features": {**record.features, feature: "read"}}),)
