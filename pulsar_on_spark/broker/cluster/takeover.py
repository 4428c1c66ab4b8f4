"""Takeover of dead brokers: the recovery of their journals, which frees their bundles.

A lock file proves that a broker of this host is dead; the living broker with the least id is the first to recover the
dead broker's journal. A broker of another host is believed to be dead if its lease has not been renewed for the lease's
duration. Such a broker may still be alive, so the recovery fences its journal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.cluster.registry import Registry
from pulsar_on_spark.broker.runtime.broker_lock import Lock, OtherLock
from pulsar_on_spark.broker.runtime.journals import LEASE_S, Journals
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.catalog.brokers import decide_deregister, ended_brokers, registered_brokers
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import DeadBrokers
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
LOOK_AT_OBJECTS_EVERY_S: Final = 1.0
"""Intervals of the checks of locks and leases, in seconds: on disks, and on object stores, which charge requests."""
RANK_S: Final = 1.0
"""Delay of a recovery for each living broker with a lesser id, in seconds: the broker with the least id acts first."""
RECOVERED_AT_ONCE: Final = 4
"""Number of journals that a broker recovers at the same time, so that a storage path without an answer delays only its
own journals."""


_DeadLocks = Mapping[OtherLock, Sequence[IncarnationId]]
"""The locks of dead brokers, and the incarnations of each."""


def may_be_blind(own_lease_pause_s: float) -> bool:
    """Return True if this broker may have been paused or cut off from the root, and so cannot judge others' leases.

    Args:
        own_lease_pause_s: The longest time in which this broker did not renew its own lease since it last checked the
            leases of others, in seconds.
    """
    return own_lease_pause_s > LEASE_S / 2


class Takeover:
    """Periodic detection of dead brokers and recovery of their journals, run until `stop`.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        journals: This broker's journals.
        lock: This broker's lock.
        registry: This broker's registration.
        on_recovered: Called after the recovery of a journal.
        clock: Returns the monotonic time, in seconds.

    Attributes:
        recovered: Number of journals of dead brokers that were recovered.
    """

    def __init__(
        self,
        root: RootHandle,
        views: Views,
        journals: Journals,
        lock: Lock,
        registry: Registry,
        on_recovered: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recovered = 0
        self._root = root
        self._views = views
        self._journals = journals
        self._lock = lock
        self._registry = registry
        self._notify_recovered = on_recovered
        self._clock = clock
        self._dead_brokers = DeadBrokers(root, clock)
        self._proved: dict[IncarnationId, float] = {}
        """Incarnations that a lock file proves to be dead, with the monotonic seconds at which this was first seen."""
        self._looked_s = clock()
        self._looking: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(RECOVERED_AT_ONCE, "pulsarpy-takeover")
        self._recovering: dict[IncarnationId, asyncio.Future[bool]] = {}

    def start(self) -> None:
        """Start the periodic detection."""
        complaint = "The broker cannot check now whether other brokers are alive"
        every_s = LOOK_EVERY_S if isinstance(self._root.place, Path) else LOOK_AT_OBJECTS_EVERY_S
        self._looking = asyncio.create_task(every(every_s, self._look, complaint), name="takeover")

    async def stop(self) -> None:
        """Stop the detection; running recoveries are not interrupted."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def is_dead(self, incarnation: str) -> bool:
        """Return True if the broker of an incarnation was dead at the last check, so that no client may get its URL."""
        return incarnation in self._proved or self._dead_brokers.looks_dead(IncarnationId(incarnation))

    def may_be_dead(self, incarnation: str) -> bool:
        """Return True if the broker of an incarnation is dead, or late with the renewal of its lease.

        A lookup waits while this is True. Otherwise the client would get the URL of a dead broker, and would try again
        only after 3 s, then after 6 s; a takeover is faster.
        """
        return self.is_dead(incarnation) or self._dead_brokers.may_be_dead(IncarnationId(incarnation))

    async def _look(self) -> None:
        view = self._views.recent
        own = {incarnation.id for incarnation in self._journals}
        first = self._journals.first.incarnation
        locks = await asyncio.to_thread(self._lock.dead_others)
        for incarnation in await asyncio.to_thread(self._judge, view, locks, own, first):
            if incarnation not in self._recovering:
                self._recover(incarnation)
        # At the end, because it commits: a failure must not delay a recovery.
        await asyncio.to_thread(self._clean_up, view, locks)

    def _judge(
        self, view: RecentView, locks: _DeadLocks, own: Collection[IncarnationId], first: Incarnation
    ) -> list[IncarnationId]:
        """Return the ids of dead brokers' incarnations whose journals this broker recovers now; runs in a thread.

        A broker that could not renew its own lease for a while was paused or cut off, and so may the other brokers have
        been. It then discards all observations of their leases. This is decided after the leases are read, because a
        pause may come at any time.
        """
        began_s = self._clock()
        proved = set(chain.from_iterable(locks.values())) - set(own)
        self._proved = {incarnation: self._proved.get(incarnation, began_s) for incarnation in proved}
        patience_s = RANK_S * self._rank(view)
        due = {incarnation for incarnation, since_s in self._proved.items() if began_s - since_s >= patience_s}
        others = {IncarnationId(record.incarnation) for record in view.all(IncarnationRecord)} - set(own)
        dead = self._dead_brokers.dead_logs(view, sorted(others - (self._proved.keys() - due)), due)
        if may_be_blind(first.lease_pause_s(self._looked_s)):
            self._dead_brokers.forget_leases()
            dead = [incarnation for incarnation in dead if incarnation in due]
        self._looked_s = began_s
        return dead

    def _recover(self, incarnation: IncarnationId) -> None:
        """Recover a journal in a thread of its own."""
        loop = asyncio.get_running_loop()
        recovering = loop.run_in_executor(self._threads, self._recover_if_recent, incarnation, self._looked_s)
        self._recovering[incarnation] = recovering
        recovering.add_done_callback(lambda _: self._on_recovered(incarnation))

    def _recover_if_recent(self, incarnation: IncarnationId, judged_s: float) -> bool:
        """Recover a journal, and return True if it is then closed.

        Return False without a recovery if this broker was paused since `judged_s`, in monotonic seconds: the journal's
        owner may have renewed its lease meanwhile.
        """
        is_recent = self._clock() - judged_s <= LEASE_S / 2
        return is_recent and self._dead_brokers.recover_log(incarnation)

    def _on_recovered(self, incarnation: IncarnationId) -> None:
        """Forget a recovery that has ended. If it closed the journal, count the journal and call `on_recovered`."""
        ended = self._recovering.pop(incarnation)
        if not ended.cancelled() and ended.exception() is None and ended.result():
            self.recovered += 1
            self._notify_recovered()

    def _rank(self, view: RecentView) -> int:
        """Return the number of living brokers with a lesser id than this one."""
        own_id = self._registry.record.broker
        return sum(
            record.broker < own_id and not self.is_dead(record.incarnation) for record in registered_brokers(view)
        )

    def _clean_up(self, view: RecentView, locks: _DeadLocks) -> None:
        """Remove registrations and lock files of brokers whose journals are closed."""
        for record in ended_brokers(view):
            self._root.store.commit(partial(decide_deregister, incarnation=record.incarnation))
            log.warning("Broker %s has ended, and its bundles are free.", record.broker)
        for lock, dead in locks.items():
            if all(is_over(view, incarnation) for incarnation in dead):
                lock.remove(dead)
