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
    """Return the namespace of the topic by which a broker, given by id, checks its own health; named as in Pulsar."""
    return f"pulsar/{re.sub(r'[^-=:.A-Za-z0-9_]', '_', broker)}"


def is_own_namespace(namespace: str) -> bool:
    """Return True if a namespace is the one of a broker's health check (see `own_namespace`)."""
    return _OF_A_BROKER.fullmatch(namespace) is not None


def registered_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the running brokers, sorted by id. A killed broker is among them until its recovery begins."""
    return [record for record in view.all(BrokerRecord) if is_open(view, record.incarnation)]


def serving_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the registered brokers that accept bundles, sorted by id."""
    return [record for record in registered_brokers(view) if record.state == "serving"]


def leader(brokers: Sequence[BrokerRecord]) -> BrokerRecord | None:
    """Return the broker with the smallest id, which does the work for the whole root; None if there are no brokers."""
    return min(brokers, key=lambda record: record.broker, default=None)


def broker_of(view: RecentView, incarnation: str) -> BrokerRecord | None:
    """Return the registration of an incarnation; None if its broker was deregistered, or has a later incarnation."""
    return next((record for record in view.all(BrokerRecord) if record.incarnation == incarnation), None)


def decide_register(new: BrokerRecord) -> Change:
    """Return the change that registers a broker, or replaces the registration with the same id.

    The commit conflicts with a concurrent commit that adds a feature to the root, because a feature is added only if
    every registered broker knows it.
    """
    return Change(puts=[new], keys={keys.broker(new.broker): None, features.ROOT_KEY: None})


def decide_deregister(view: View, incarnation: str) -> Change | None:
    """Return the change that removes an ending or ended incarnation's registration; None if it is not registered."""
    record = broker_of(view, incarnation)
    return None if record is None else Change(deletes=[record], keys={keys.broker(record.broker): None})


def ended_brokers(view: RecentView) -> list[BrokerRecord]:
    """Return the registrations of brokers whose incarnation is over."""
    return [record for record in view.all(BrokerRecord) if is_over(view, record.incarnation)]
