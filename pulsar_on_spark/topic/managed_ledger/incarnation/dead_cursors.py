"""Saving the cursor records in a dead broker's journal to the cursors table, before subscriptions get a new owner.

`sealing/trim.py` also saves the records before it trims a journal. This module saves them at once, for a new owner of
one of the dead broker's subscriptions that cannot wait until the whole journal is sealed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import DurableView
from pulsar_on_spark.model.errors import InvalidArgumentError, JournalUndecidedError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation
from pulsar_on_spark.topic.managed_ledger.sealing.journal_cursors import snapshot_cursors
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import frames_of
from pulsar_on_spark.topic.managed_ledger.sealing.seals import SealedLog, sealed_log

_ATTEMPTS = 3


class DeadOwners:
    """Watcher of the brokers that own subscriptions; it saves the cursors of dead brokers.

    Args:
        root: The root.
        clock: Returns monotonic seconds.
    """

    def __init__(self, root: RootHandle, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._watcher = LeaseWatcher(root.broker_leases(), clock)
        self._settled: set[IncarnationId] = set()
        self._lock = threading.Lock()

    def save_dead_cursors(self, incarnation: IncarnationId) -> LeaseState:
        """If a broker is dead, recover its journal and save its cursor records to the cursors table.

        Returns:
            The state of the broker's lease. If it is EXPIRED, the broker was dead and its cursors are saved now.

        Raises:
            JournalUndecidedError, CorruptCursorError: the broker's journal cannot be closed or read now.
            MetadataError, StorageError: the metadata or the leases cannot be read.
        """
        if incarnation in self._settled:
            return LeaseState.EXPIRED
        record = self._root.store.view().get(IncarnationRecord, incarnation)
        if record is not None and record.state != "CLOSED":
            with self._lock:
                self._watcher.observe_leases()
                state = self._watcher.lease_state(incarnation)
                if state is LeaseState.UNKNOWN and self._watcher.was_renewed(incarnation):
                    state = LeaseState.ALIVE
            if state is not LeaseState.EXPIRED:
                return state
            recover_incarnation(self._root, incarnation)
        settle_cursors(self._root, incarnation)
        self._settled.add(incarnation)
        return LeaseState.EXPIRED


def _log_to_settle(view: DurableView, incarnation: IncarnationId) -> SealedLog | None:
    """Return an incarnation's log; None if it was removed, so that there is nothing to save."""
    return sealed_log(view, incarnation)


def settle_cursors(root: RootHandle, incarnation: IncarnationId) -> None:
    """Make the contents of all cursor records in an incarnation's CLOSED journal durable in the cursors table.

    Any process may call this, any number of times. A call reads the untrimmed part of the journal.

    Raises:
        InvalidArgumentError: the journal is not CLOSED: recover it first.
        JournalUndecidedError: a frame cannot be read from any copy, because storage paths are unreachable or damaged.
        CorruptCursorError: a cursor record is damaged.
        MetadataError: the metadata cannot be read or written.
    """
    for attempt in range(_ATTEMPTS):
        found = _log_to_settle(root.store.view(durable=True), incarnation)
        if found is None:
            return  # the journal was removed, which happens only after its cursors are in the table
        if found.record.last_frame is None:
            raise InvalidArgumentError(
                f"The journal of incarnation {incarnation} in {root.place} is not closed: run `pulsarpy recover` first."
            )
        try:
            end = found.record.last_frame + 1
            snapshot_cursors(root.store, frames_of(found, root.current_journal_paths, found.floor, end))
            return
        except JournalUndecidedError:
            now = sealed_log(root.store.view(), incarnation)
            # Frames may be gone because a trimmer has saved their cursors and deleted them meanwhile.
            if attempt == _ATTEMPTS - 1 or (now is not None and now.seal.trimmed_before == found.seal.trimmed_before):
                raise
