"""Features of roots: what an older program must know before it may use a root (docs/adr/0018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pulsar_on_spark.metadata.records import BrokerRecord, IncarnationRecord, RootRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError

OBJECT_PATHS: Final = "object-paths"
"""Storage paths on object stores, of one host, or of one role."""
COPY_GENERATIONS: Final = "copy-generations"
"""Copies that repair made under names of their own."""
OBJECT_JOURNALS: Final = "object-journals"
"""Journals on object stores: a program that does not know them can neither read nor recover them."""
BUNDLES: Final = "bundles"
"""Several brokers, each of which serves the topics of its bundles: a program that does not know it must not serve."""
FEATURES: Final = frozenset({OBJECT_PATHS, COPY_GENERATIONS, OBJECT_JOURNALS, BUNDLES})
"""The features that this version knows."""
ROOT_KEY: Final = "root"


def using(
    view: View, feature: str, known_to: Literal["read", "write"] = "read"
) -> tuple[Sequence[RootRecord], Mapping[str, None]]:
    """Return what the commit that uses a feature puts, and the key that it moves; nothing if the root has the feature.

    Args:
        view: The metadata.
        feature: The feature.
        known_to: `read` if a program must know it to read the root, `write` if only to change it.

    Raises:
        InvalidArgumentError: a broker that runs does not know the feature.
    """
    record = view.get(RootRecord, "root")
    if record is None or feature in record.features:
        return (), {}
    for broker in view.all(BrokerRecord):
        incarnation = view.get(IncarnationRecord, broker.incarnation)
        if incarnation is not None and incarnation.state == "OPEN" and feature not in broker.features:
            raise InvalidArgumentError(
                f"Broker {broker.broker} (version {broker.version}) does not know the feature {feature} that this "
                "would put into the root: upgrade it first, or if it has ended without a word, run `pulsarpy recover`."
            )
    return (record.model_copy(update={"features": {**record.features, feature: known_to}}),), {ROOT_KEY: None}
