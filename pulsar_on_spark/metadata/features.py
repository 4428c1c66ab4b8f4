"""Features of roots, which a program must know to use a root that has them (docs/adr/0018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pulsar_on_spark.metadata.records import BrokerRecord, IncarnationRecord, RootRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError

OBJECT_PATHS: Final = "object-paths"
"""Storage paths that are on object stores, belong to one host, or have one role."""
COPY_GENERATIONS: Final = "copy-generations"
"""Copies of segment files that repair made, with names of their own."""
OBJECT_JOURNALS: Final = "object-journals"
"""Journals on object stores; a program that does not know the feature can neither read nor recover them."""
BUNDLES: Final = "bundles"
"""Several brokers, each of which serves the topics of its bundles; a program that does not know it must not serve."""
COLD_PATHS: Final = "cold-paths"
"""Storage paths for offloaded segment files, of which one copy is enough."""
HISTORY_PATHS: Final = "history-paths"
"""Storage paths for history tables."""
FEATURES: Final = frozenset({OBJECT_PATHS, COPY_GENERATIONS, OBJECT_JOURNALS, BUNDLES, COLD_PATHS, HISTORY_PATHS})
"""The features that this version knows."""
ROOT_KEY: Final = "root"


def using(
    view: View, feature: str, known_to: Literal["read", "write"] = "read"
) -> tuple[Sequence[RootRecord], Mapping[str, None]]:
    """Return the record and the key that a commit must add to put a feature into the root; empty if the root has it.

    Args:
        view: The metadata.
        feature: The feature.
        known_to: `read` if a program must know the feature to read the root, `write` if only to change it.

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
                f"Broker {broker.broker} (version {broker.version}) does not know the feature {feature}, which the "
                "root would need from then on: upgrade the broker first or, if it has died, run `pulsarpy recover`."
            )
    return (record.model_copy(update={"features": {**record.features, feature: known_to}}),), {ROOT_KEY: None}
