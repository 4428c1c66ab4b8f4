"""Takeover: the recovery of other brokers' journals once they are dead, which frees their bundles.

A lock file proves that a broker of this host is dead; the living broker with the least id recovers its journal first.
Any other broker is believed to be dead if its lease has not been renewed for its duration; it may be alive, and is
fenced by the recovery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from pulsar_on_spark.broker.cluster.registry import Registry
from pulsar_on_spark.broker.runtime.broker_lock import Lock, OtherLock
from pulsar_on_spark.broker.runtime.journals import LEASE_S, Journals
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.catalog.brokers import decide_deregister, ended_brokers, registered_brokers
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import DeadBrokers

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Interval of the looks at locks and leases, in seconds."""
RANK_S: Final = 1.0
"""Time that a broker leaves to each living broker with a lesser id, in seconds, before it acts itself."""


class Takeover:
    """Looks for dead brokers until it is stopped.

    Args:
        root: The root.
        views: Its metadata.
        journals: This broker's journals.
        lock: This broker's lock.
        registry: This broker's registration.
    """

    def __init__(self, root: RootHandle, views: Views, journals: Journals, lock: Lock, registry: Registry) -> None:
        self._root = root
        self._views = views
        self._journals = journals
        self._lock = lock
        self._registry = registry
        self._dead_brokers = DeadBrokers(root)
        self._proved: dict[IncarnationId, float] = {}
        """Incarnations that a lock proves to be dead, and the time of the proof on the monotonic clock."""
        self._looked_s = time.monotonic()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking."""
        complaint = "It cannot be seen now whether other brokers are alive"
        self._looking = asyncio.create_task(every(LOOK_EVERY_S, self._look, complaint), name="takeover")

    async def stop(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def is_dead(self, incarnation: str) -> bool:
        """Return True if the broker of an incarnation was dead at the last look: no client shall get its URL."""
        return incarnation in self._proved or self._dead_brokers.looks_dead(IncarnationId(incarnation))

    async def _look(self) -> None:
        view = await self._views.view()
        own = {incarnation.id for incarnation in self._journals}
        lease_age_s = self._journals.first.incarnation.lease_age_s
        await asyncio.to_thread(self._recover, view, own, lease_age_s)
        self._looked_s = time.monotonic()

    def _recover(self, view: View, own: Collection[IncarnationId], lease_age_s: float) -> None:
        """Recover dead brokers' journals; runs in a thread.

        If this broker has not looked for a while, or cannot renew its own lease, it may have been paused or cut off,
        and the others with it. Then it forgets what it has seen of their leases.
        """
        if max(time.monotonic() - self._looked_s, lease_age_s) > LEASE_S / 2:
            self._dead_brokers = DeadBrokers(self._root)
        locks = self._lock.dead_others()
        proved = set(chain.from_iterable(locks.values())) - set(own)
        now_s = time.monotonic()
        self._proved = {incarnation: self._proved.get(incarnation, now_s) for incarnation in proved}
        patience_s = RANK_S * self._rank(view)
        due = {incarnation for incarnation, since_s in self._proved.items() if now_s - since_s >= patience_s}
        others = {IncarnationId(record.incarnation) for record in view.all(IncarnationRecord)} - set(own)
        self._dead_brokers.recover_dead_logs(view, others - (self._proved.keys() - due), due)
        self._clean_up(view, locks)

    def _rank(self, view: View) -> int:
        """Count the living brokers with a lesser id than this one."""
        own_id = self._registry.record.broker
        return sum(
            record.broker < own_id and not self.is_dead(record.incarnation) for record in registered_brokers(view)
        )

    def _clean_up(self, view: View, locks: Mapping[OtherLock, Sequence[IncarnationId]]) -> None:
        """Remove registrations and lock files of brokers whose journals are closed."""
        for record in ended_brokers(view):
            self._root.store.commit(partial(decide_deregister, incarnation=record.incarnation))
            log.warning("Broker %s has ended, and its bundles are free.", record.broker)
        for lock, dead in locks.items():
            if all(is_over(view, incarnation) for incarnation in dead):
                lock.remove(dead)
