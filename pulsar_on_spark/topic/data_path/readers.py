"""Check for live Spark queries of a subscription, before the subscription or its topic is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle


class SparkReaders:
    """Watcher of the leases of Spark's consumers.

    A consumer counts as alive until its lease was watched for the lease's duration without a renewal.

    Args:
        root: The root.
        clock: Returns monotonic seconds.
    """

    def __init__(self, root: RootHandle, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._watchers: dict[str, LeaseWatcher] = {}

    def watch_subscriptions(self, names: Iterable[str]) -> None:
        """Poll the leases of these subscriptions."""
        for name in set(names):
            watcher = self._watchers.get(name)
            if watcher is None:
                leases = self._root.consumer_leases(name)
                watcher = self._watchers[name] = LeaseWatcher(leases, self._clock)
            watcher.observe_leases()

    def watch_only(self, names: Iterable[str]) -> None:
        """Poll the leases of these subscriptions, and stop watching all others."""
        wanted = set(names)
        self._watchers = {name: watcher for name, watcher in self._watchers.items() if name in wanted}
        self.watch_subscriptions(wanted)

    def read(self, record: SubscriptionRecord) -> bool:
        """Return True if a live query may be reading the subscription, which must be watched."""
        owners = [owner.consumer for owner in record.owners if owner.consumer is not None]
        if record.face != "spark" or not owners:
            return False
        states = self._watchers[record.name].lease_states(TopicId(record.topic_id))
        return any(states.get(owner, LeaseState.EXPIRED) is not LeaseState.EXPIRED for owner in owners)
