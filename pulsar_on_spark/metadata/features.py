"""Features of roots: a program may use a root only if it knows the root's features (docs/adr/0018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pulsar_on_spark.metadata.records import BrokerRecord, IncarnationRecord, RootRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError

OBJECT_PATHS: Final = "object-paths"
"""Storage paths that are on an object store, belong to one host, or are only for segments or only for journals."""
COPY_GENERATIONS: Final = "copy-generations"
"""Copies of segment files whose names have a generation, because repair made them (docs/adr/0021)."""
OBJECT_JOURNALS: Final = "object-journals"
"""Journals on object stores. A program that does not know this feature can neither read nor recover them."""
BUNDLES: Final = "bundles"
"""Several brokers, each of which serves the topics of its bundles. A broker that does not know this feature must not
serve topics."""
COLD_PATHS: Final = "cold-paths"
"""Storage paths for offloaded segment files, which need only one copy."""
HISTORY_PATHS: Final = "history-paths"
"""Storage paths for history tables."""
FEATURES: Final = frozenset({OBJECT_PATHS, COPY_GENERATIONS, OBJECT_JOURNALS, BUNDLES, COLD_PATHS, HISTORY_PATHS})
"""The features that this version knows."""
ROOT_KEY: Final = "root"


def using(
    view: View, feature: str, known_to: Literal["read", "write"] = "read"
) -> tuple[Sequence[RootRecord], Mapping[str, None]]:
    """Return the changes that a commit must include to give the root a feature.

    Both results are empty if the root has the feature, or has no root record yet.

    Args:
        view: The view of the main table on which the commit is decided.
        feature: The feature, one of `FEATURES`.
        known_to: `read` if a program must know the feature to read the root, `write` if only to write to the root.

    Returns:
        The root record to put, and the compare-and-set key to move (its value None means the next version).

    Raises:
        InvalidArgumentError: a running broker does not know the feature.
    """
    record = view.get(RootRecord, "root")
    if record is None or feature in record.features:
        return (), {}
    for broker in view.all(BrokerRecord):
        incarnation = view.get(IncarnationRecord, broker.incarnation)
        if incarnation is not None and incarnation.state == "OPEN" and feature not in broker.features:
            raise InvalidArgumentError(
                f"Broker {broker.broker} (version {broker.version}) does not know the feature {feature}, which this "
                "change adds to the root: upgrade the broker first or, if it has died, run `pulsarpy recover`."
            )
    return (record.model_copy(update={"features": {**record.features, feature: known_to}}),), {ROOT_KEY: None}
