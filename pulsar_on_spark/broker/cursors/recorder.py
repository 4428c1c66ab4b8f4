"""Recording of cursors' changes in the journal, and periodically in the cursors table.

record_soon  a record within a second; cursors that move in the same turn of the loop share frames of the journal
record_now   a record at once, because a caller waits; callers that begin to wait during its write share the next record
snapshot     a row of each cursor that moved since its last row, in one commit: the journal can then be trimmed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.model.errors import JournalFencedError, PulsarpyError
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord, encode
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation

log = logging.getLogger(__name__)

RECORD_EVERY_S: Final = 1.0
"""Minimum seconds between two records of a cursor if no caller waits (managedLedgerDefaultMarkDeleteRateLimit)."""
MAX_RECORD_BYTES: Final = 1 << 20
"""Size limit of a record in the journal, because entries wait behind it; larger records go to the cursors table."""

_TICK_S: Final = 0.1
_AT_ONCE: Final = 1_000
"""Maximum number of records made in one turn of the event loop: more would block the loop for over 20 ms."""
_SNAPSHOTS_A_COMMIT: Final = 10_000
_SNAPSHOT_BYTES_A_COMMIT: Final = 32 << 20
_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The context of a cursor record, which the journal returns with the record's outcome.

    Attributes:
        cursor: The cursor.
        done: The future to complete when the record is durable.
    """

    cursor: OpenCursor
    done: asyncio.Future[None]


class Recorder:
    """The writer of cursors' changes, and the journal's `CursorSink`. Call all methods in the broker's event loop."""

    def __init__(self, incarnation: Incarnation, commits: GroupedCommits) -> None:
        incarnation.journal.cursor_sink = self
        self._incarnation = incarnation
        self._commits = commits
        self._changed: dict[OpenCursor, None] = {}
        self._urgent: dict[OpenCursor, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_urgent_scheduled = False
        self._saving: set[asyncio.Task[None]] = set()

    def record_soon(self, cursor: OpenCursor) -> None:
        """Put a cursor's changes into the journal within a second."""
        self._changed[cursor] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def record_now(self, cursor: OpenCursor) -> None:
        """Put a cursor's changes into the journal at once, together with other requests of this turn of the loop."""
        self._urgent[cursor] = None
        if not self._is_urgent_scheduled:
            self._is_urgent_scheduled = True
            asyncio.get_running_loop().call_soon(self._record_urgent)

    def stop_recording(self, cursor: OpenCursor) -> None:
        """Drop the pending requests to record this cursor's changes."""
        self._changed.pop(cursor, None)
        self._urgent.pop(cursor, None)

    async def snapshot(self, cursors: Iterable[OpenCursor]) -> None:
        """Write a row of each moved cursor to the cursors table; each row's changes were given to the journal first.

        Raises:
            MetadataError: the table cannot be written; the next snapshot includes the changes.
        """
        batch: list[tuple[OpenCursor, CursorRecord]] = []
        size_bytes = 0
        for number, cursor in enumerate(cursors, 1):
            snapshot = self._snapshot_of(cursor)
            if snapshot is not None:
                batch.append((cursor, snapshot))
                size_bytes += len(snapshot.ack_holes)
            if len(batch) >= _SNAPSHOTS_A_COMMIT or size_bytes >= _SNAPSHOT_BYTES_A_COMMIT:
                await self._append(batch)
                batch, size_bytes = [], 0
            elif number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._append(batch)

    # -- callbacks of the journal --------------------------------------------------------------------------------------

    def on_cursors_acknowledged(self, records: Sequence[_Recorded]) -> None:
        """Complete the futures of these cursor records, which the journal has made durable."""
        for recorded in records:
            self._done(recorded)

    def on_cursors_unknown(self, records: Sequence[_Recorded]) -> None:
        """Fail the futures of these cursor records, because the journal has ended before their outcome was known."""
        for recorded in records:
            if not recorded.done.done():
                text = (
                    f"The broker's journal ended before the acknowledgements of subscription {recorded.cursor.name!r} "
                    f"on {recorded.cursor.part.name} were durable: acknowledge again."
                )
                recorded.done.set_exception(JournalFencedError(text))
                recorded.done.exception()  # mark it as retrieved, as there may be no caller

    def on_journal_room(self) -> None:
        """Record the changes that wait for room in the journal, which accepts records again."""
        self._record_urgent()

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _record_urgent(self) -> None:
        self._is_urgent_scheduled = False
        for cursor in list(self._urgent):
            if not self._incarnation.can_append:
                return  # `on_journal_room` continues
            self._urgent.pop(cursor, None)
            if not cursor.is_recording:
                self._record(cursor)

    def _tick(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s, count = loop.time(), 0
        for cursor in list(self._changed):
            if count >= _AT_ONCE or not self._incarnation.can_append:
                break
            if now_s - cursor.recorded_s >= RECORD_EVERY_S:
                self._record(cursor)
                count += 1
        if self._changed:
            self._timer = loop.call_later(_TICK_S, self._tick)

    def _record(self, cursor: OpenCursor) -> None:
        """Put the cursor's changes into the journal; the caller has checked that it has room."""
        self._changed.pop(cursor, None)
        if cursor.lost is not None or not cursor.cursor.unrecorded:
            return
        cursor.recorded_s = asyncio.get_running_loop().time()
        record, done = cursor.take_record()
        data = encode(record)
        if len(data) > MAX_RECORD_BYTES:
            task = asyncio.create_task(self._save_large(_Recorded(cursor, done), cursor.cursor.snapshot()))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)
            return
        key = f"{record.topic_id}/{record.subscription}".encode()
        self._incarnation.append_cursor(key, data, _Recorded(cursor, done))

    def _done(self, recorded: _Recorded) -> None:
        if not recorded.done.done():
            recorded.done.set_result(None)
        if recorded.cursor.is_waited_for:
            self.record_now(recorded.cursor)

    # -- the cursors table ---------------------------------------------------------------------------------------------

    async def _save_large(self, recorded: _Recorded, whole: CursorRecord) -> None:
        """Save a cursor in the table, because its record is too large for the journal."""
        cursor = recorded.cursor
        while cursor.lost is None:
            try:
                await self._append([(cursor, whole)])
            except (PulsarpyError, OSError) as error:
                log.warning(
                    "The large cursor of %r on %s is not saved yet: %s",
                    cursor.name,
                    cursor.part.name,
                    error,
                    extra={"subscription": cursor.name, "topic": cursor.part.name},
                )
                await asyncio.sleep(_RETRY_S)
            else:
                self._done(recorded)
                return

    def _snapshot_of(self, cursor: OpenCursor) -> CursorRecord | None:
        """Return a snapshot of a cursor for the cursors table.

        None if the table has it already, if the cursor is lost, or if its changes wait for room in the journal.
        """
        if cursor.lost is not None:
            return None
        if cursor.cursor.unrecorded and self._incarnation.can_append:
            self._record(cursor)
        if cursor.cursor.unrecorded or cursor.cursor.rank == cursor.snapshotted:
            return None
        return cursor.cursor.snapshot()

    async def _append(self, snapshots: Sequence[tuple[OpenCursor, CursorRecord]]) -> None:
        if snapshots:
            await self._commits.append([snapshot.to_row() for _, snapshot in snapshots])
            for cursor, snapshot in snapshots:
                cursor.snapshotted = max(snapshot.rank, cursor.snapshotted or snapshot.rank)
