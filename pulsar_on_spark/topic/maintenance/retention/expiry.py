"""Expiry of subscriptions without live consumers for too long, and of old leases.

A consumer rewrites its lease every few seconds. The age of a lease is measured by the wall clock, because expiry is a
matter of hours or days. A consumer that returns to an expired subscription gets an error with the subscription's name.
"""

from __future__ import annotations

import time

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.storage import root_place
from pulsar_on_spark.storage.leases.contract import LeaseStore
from pulsar_on_spark.topic.catalog.leases import Lease
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

SWEEP_AFTER_S = 24 * 3600.0
"""Minimum age of leases that are deleted; it is longer than any lease's duration."""


def expire_subscriptions(root: RootHandle, clock: float | None = None) -> int:
    """Delete subscriptions that may expire and had no live consumer for `expires_after_s`. Return their number.

    Args:
        root: The root.
        clock: The time by which ages are computed, in seconds since 1970; None for now.
    """
    now_s = time.time() if clock is None else clock
    view = root.store.view()
    names = {topic.topic_id: topic.name for topic in view.all(TopicRecord)}
    expired = 0
    for record in view.all(SubscriptionRecord):
        if record.topic_id in names and _is_expired(root, record, now_s):
            expired += _delete(root, names[record.topic_id], record, now_s)
    return expired


def sweep_leases(root: RootHandle, clock: float | None = None) -> int:
    """Delete leases that were not renewed for a day or, if that is longer, for the longest `expires_after_s`.

    A suspended consumer whose lease is deleted writes it again when it continues.

    Args:
        root: The root.
        clock: The time by which ages are computed, in seconds since 1970; None for now.

    Returns:
        The number of deleted leases.
    """
    now_s = time.time() if clock is None else clock
    subscriptions = root.store.view().all(SubscriptionRecord)
    keep_s = max([SWEEP_AFTER_S, *(record.expires_after_s or 0 for record in subscriptions)])
    return root_place.sweep_leases(root.place, now_s - keep_s)


def _delete(root: RootHandle, topic: str, record: SubscriptionRecord, now_s: float) -> bool:
    deleted = False

    def decide(view: View) -> Change | None:
        nonlocal deleted
        found = view.get(SubscriptionRecord, record.record_id)
        deleted = found is not None and _is_expired(root, found, now_s)
        if found is None or not deleted:
            return None
        return Change(
            deletes=[found],
            keys={keys.topic(topic): None, keys.subscription(record.topic_id, record.name): None},
        )

    root.store.commit(decide)
    return deleted


def _is_expired(root: RootHandle, record: SubscriptionRecord, now_s: float) -> bool:
    if record.expires_after_s is None or record.face == "broker":
        return False
    seen_s = max([record.created_at.timestamp(), *_renewals(root.consumer_leases(record.name), record.topic_id)])
    return now_s - seen_s > record.expires_after_s


def _renewals(leases: LeaseStore, topic_id: str) -> list[float]:
    """Return the time of each lease's last renewal, in seconds since 1970, for the consumers of a topic."""
    renewals = []
    for stored in leases.read_all():
        lease = Lease.parse(stored.content, f"{stored.name} in {leases.place}")
        if lease is None or topic_id in lease.topics:
            renewals.append(stored.written_s)
    return renewals
