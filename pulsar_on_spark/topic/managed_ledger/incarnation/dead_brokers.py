"""Recovery of dead brokers' journals by readers and writers that depend on a dead broker's open ledger.

A broker's lease decides only when a recovery is tried. Recovery is safe at any time, because it fences a live broker.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection

from pulsar_on_spark.ledger.journal.log import LogRecord
from pulsar_on_spark.ledger.journal.recover import recover
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.model.errors import JournalUndecidedError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, PathId, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.storage.placement import preferred
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open
from pulsar_on_spark.topic.managed_ledger.incarnation.hosts import other_host

log = logging.getLogger(__name__)

OBSERVE_EVERY_S = 0.5
"""Minimum seconds between two reads of the leases, which brokers renew every few seconds."""
RETRY_AFTER_S = 3.0
"""Minimum seconds before a recovery is tried that has failed or that another process has begun. A random part of up to
half as much is added."""


def recover_incarnation(root: RootHandle, incarnation: IncarnationId, give_up: Collection[PathId] = ()) -> LogRecord:
    """Close an incarnation's journal, even if its lease is valid, and return the CLOSED log. A live broker is fenced.

    Args:
        root: The root.
        incarnation: The journal's incarnation.
        give_up: Storage paths that an operator accepts as lost (see `ledger.journal.recover`).

    Raises:
        MetadataError: the metadata cannot be read or written.
        JournalUndecidedError: the journal is on another host, or the last acknowledged frame cannot be determined,
            because a path is unreachable or damaged.
    """
    view = root.store.view()
    if (host := other_host(view, incarnation)) is not None:
        raise JournalUndecidedError(
            f"The journal of incarnation {incarnation} in {root.place} is on the host {host}, where its acknowledged "
            "messages are safe: start a broker or run `pulsarpy recover` on that host."
        )
    paths = preferred(root.writable_journal_paths(view), incarnation)
    root.announce_journals(paths)
    writable = [path.path_id for path in paths]
    return recover(LogRegister(root.store, incarnation), root.current_journal_paths, writable, give_up=give_up)


def recover_before(root: RootHandle, topic_ids: Collection[TopicId]) -> None:
    """Recover dead brokers whose open ledgers hide entries that a writer attached to these topics.

    A lease that looks stale is watched for at most its duration. Errors are logged, not raised, because the attached
    entries are committed and readers try the recovery again.
    """
    try:
        view = root.store.view()
        owners = {
            IncarnationId(ledger.incarnation)
            for topic_id in topic_ids
            for ledger in view.all(LedgerRecord, topic_id)
            if ledger.incarnation is not None and is_open(view, ledger)
        }
        if owners:
            DeadBrokers(root).recover_or_wait(view, owners)
    except (PulsarpyError, OSError) as error:
        log.warning("It is unknown whether the brokers of the topics are alive; readers will check again: %s", error)


class DeadBrokers:
    """Watcher of the broker incarnations on which a reader depends; it recovers dead incarnations.

    Args:
        root: The root.
        clock: Returns monotonic seconds.
    """

    def __init__(self, root: RootHandle, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._retry_at_s: dict[IncarnationId, float] = {}
        self.forget_leases()

    def forget_leases(self) -> None:
        """Discard all observations of leases, and watch the leases from now on. Waits before retries are kept."""
        self._watcher = LeaseWatcher(self._root.broker_leases(), self._clock)
        self._look_at_s = float("-inf")
        self._expired: set[IncarnationId] = set()
        self._late: set[IncarnationId] = set()

    def recover_dead_logs(self, view: View, incarnations: Collection[IncarnationId]) -> bool:
        """Recover the journals of the dead brokers among these incarnations. Errors are logged, not raised.

        Leases are read at most every `OBSERVE_EVERY_S` seconds.

        Args:
            view: The metadata.
            incarnations: The incarnations; CLOSED ones are ignored.

        Returns:
            True if the journal of at least one incarnation was closed.
        """
        recovered = [self.recover_log(incarnation) for incarnation in self.dead_logs(view, incarnations)]
        return any(recovered)

    def dead_logs(
        self, view: RecentView, incarnations: Collection[IncarnationId], known_dead: Collection[IncarnationId] = ()
    ) -> list[IncarnationId]:
        """Return the dead incarnations among these whose journals are to be recovered on this host now.

        Errors of reading leases are logged, not raised.

        Args:
            view: The metadata.
            incarnations: The incarnations; CLOSED ones are ignored.
            known_dead: Incarnations that the caller knows to be dead; their leases are not read.
        """
        there = [each for each in incarnations if _state(view, each) not in (None, "CLOSED")]
        self._observe([each for each in there if each not in known_dead])
        dead = [each for each in there if each in known_dead or each in self._expired]
        return [each for each in dead if self._is_due(view, each)]

    def recover_log(self, incarnation: IncarnationId) -> bool:
        """Recover a dead broker's journal. Return True if it is CLOSED afterwards. Errors are logged, not raised."""
        log.warning(
            "The broker of incarnation %s has ended without closing its journal, or does not renew its lease: the "
            "journal is recovered.",
            incarnation,
            extra={"incarnation": incarnation},
        )
        try:
            record = recover_incarnation(self._root, incarnation)
        except (PulsarpyError, OSError) as error:
            self._retry_later(incarnation)
            log.warning(
                "The journal of broker incarnation %s is not recovered yet, so its last messages stay invisible: %s",
                incarnation,
                error,
                extra={"incarnation": incarnation},
            )
            return False
        except Exception:  # a defect; without a pause, each attempt would leave a commit behind
            self._retry_later(incarnation)
            log.exception(
                "The journal of broker incarnation %s is not recovered because of a bug; the recovery is retried.",
                incarnation,
                extra={"incarnation": incarnation},
            )
            return False
        log.warning(
            "The journal of broker incarnation %s is closed at frame %s.",
            incarnation,
            record.last_frame,
            extra={"incarnation": incarnation},
        )
        return True

    def looks_dead(self, incarnation: IncarnationId) -> bool:
        """Return True if the lease of an incarnation had run out when leases were last read; False if it is CLOSED."""
        return incarnation in self._expired

    def may_be_dead(self, incarnation: IncarnationId) -> bool:
        """Return True if an incarnation that is not CLOSED was late to renew its lease when leases were last read."""
        return incarnation in self._late

    def recover_or_wait(self, view: View, incarnations: Collection[IncarnationId]) -> bool:
        """Wait until each lease that looks stale has run out or is renewed, then recover as `recover_dead_logs` does.

        Errors of reading leases during the wait are raised.

        Returns:
            True if the journal of at least one incarnation was closed.
        """
        waited = False
        while undecided := [incarnation for incarnation in incarnations if self._is_undecided(view, incarnation)]:
            if not waited:
                log.warning(
                    "Waiting, at most the duration of a lease, to find out if these broker incarnations are dead: %s.",
                    ", ".join(undecided),
                )
            waited = True
            time.sleep(OBSERVE_EVERY_S / 5)
            self._watcher.observe_leases()
        if waited:
            self._look_at_s = float("-inf")
        return self.recover_dead_logs(view, incarnations)

    def _is_undecided(self, view: View, incarnation: IncarnationId) -> bool:
        """Return True if the incarnation's lease looks stale, but was not watched for its duration yet."""
        if _state(view, incarnation) in (None, "CLOSED") or other_host(view, incarnation) is not None:
            return False
        self._watcher.observe_leases()
        is_unknown = self._watcher.lease_state(incarnation) is LeaseState.UNKNOWN
        return is_unknown and self._watcher.looks_stale(incarnation, time.time())

    def _observe(self, incarnations: Collection[IncarnationId]) -> None:
        """Find the expired and the late leases of these incarnations, unless leases were read very recently."""
        if not incarnations:
            self._expired = self._late = set()
        if not incarnations or self._clock() < self._look_at_s:
            return
        self._look_at_s = self._clock() + OBSERVE_EVERY_S
        try:
            self._watcher.observe_leases()
        except (PulsarpyError, OSError) as error:
            log.warning("The leases of brokers cannot be read now, so no broker counts as dead: %s", error)
            self._expired = self._late = set()
        else:
            expired = LeaseState.EXPIRED
            self._expired = {each for each in incarnations if self._watcher.lease_state(each) is expired}
            self._late = {each for each in incarnations if self._watcher.is_late(each)}

    def _is_due(self, view: RecentView, incarnation: IncarnationId) -> bool:
        """Return True if a dead broker's journal can be recovered on this host, and no pause before a retry remains."""
        if other_host(view, incarnation) is not None:
            return False
        if _state(view, incarnation) == "IN_RECOVERY" and incarnation not in self._retry_at_s:
            self._retry_later(incarnation)  # another process has begun the recovery, and gets time to finish
        return self._clock() >= self._retry_at_s.get(incarnation, float("-inf"))

    def _retry_later(self, incarnation: IncarnationId) -> None:
        self._retry_at_s[incarnation] = self._clock() + RETRY_AFTER_S * random.uniform(1, 1.5)


def _state(view: RecentView, incarnation: IncarnationId) -> str | None:
    """Return the state of an incarnation's journal; None if it has no record."""
    record = view.get(IncarnationRecord, incarnation)
    return None if record is None else record.state
