"""The registrations of a root's brokers. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.records import BrokerRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.topic.catalog.bundles import is_open, is_over

_OF_A_BROKER: Final = re.compile(r"pulsar/[^/]+:\d+")


def own_namespace(broker: str) -> str:
    """Return the namespace that a broker keeps for itself, as in Pulsar: for the topic of its health check."""
    return f"pulsar/{re.sub(r'[^-=:.A-Za-z0-9_]', '_', broker)}"


def is_own_namespace(namespace: str) -> bool:
    """Return True if a namespace is some broker's own."""
    return _OF_A_BROKER.fullmatch(namespace) is not None


def registered_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the brokers that run, as far as the metadata tell, by id: a killed one stays until it is recovered."""
    return [record for record in view.all(BrokerRecord) if is_open(view, record.incarnation)]


def serving_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the registered brokers that take bundles, by id."""
    return [record for record in registered_brokers(view) if record.state == "serving"]


def leader(brokers: Sequence[BrokerRecord]) -> BrokerRecord | None:
    """Return the broker with the least id of some: work of the whole root is its task. None if there are none."""
    return min(brokers, key=lambda record: record.broker, default=None)


def broker_of(view: RecentView, incarnation: str) -> BrokerRecord | None:
    """Return the registration of an incarnation; None if the broker has ended or has registered again."""
    return next((record for record in view.all(BrokerRecord) if record.incarnation == incarnation), None)


def decide_register(new: BrokerRecord) -> Change:
    """Register a broker, or change its registration; an earlier one with the same id is replaced.

    It conflicts with a commit that puts a feature into the root: that must have seen the broker.
    """
    return Change(puts=[new], keys={keys.broker(new.broker): None, features.ROOT_KEY: None})


def decide_deregister(view: View, incarnation: str) -> Change | None:
    """Remove the registration of a broker that ends or has ended; None if it has registered again."""
    record = broker_of(view, incarnation)
    return None if record is None else Change(deletes=[record], keys={keys.broker(record.broker): None})


def ended_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the registrations of brokers whose incarnation is over."""
    return [record for record in view.all(BrokerRecord) if is_over(view, record.incarnation)]
