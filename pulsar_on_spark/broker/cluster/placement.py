"""The choice of the broker that gets a bundle without an owner. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from random import Random

from pulsar_on_spark.metadata.records import BrokerRecord, BundlesRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.topic.catalog.bundles import Bundle


def bundle_counts(view: RecentView) -> Counter[str]:
    """Count the bundles of each incarnation."""
    records = view.all(BundlesRecord)
    return Counter(owner.incarnation for record in records for owner in record.owners if owner.incarnation is not None)


def place_bundles(
    bundles: Sequence[Bundle], brokers: Collection[BrokerRecord], counts: Counter[str], random: Random
) -> dict[Bundle, str]:
    """Choose an incarnation for each bundle: of two random brokers, the one with fewer bundles.

    Args:
        bundles: The bundles.
        brokers: The brokers that take bundles; at least one.
        counts: The number of bundles of each incarnation.
        random: The source of the choice.
    """
    counts = counts.copy()
    placed: dict[Bundle, str] = {}
    incarnations = [record.incarnation for record in brokers]
    for bundle in bundles:
        candidates = random.sample(incarnations, min(2, len(incarnations)))
        placed[bundle] = min(candidates, key=lambda incarnation: counts[incarnation])
        counts[placed[bundle]] += 1
    return placed
