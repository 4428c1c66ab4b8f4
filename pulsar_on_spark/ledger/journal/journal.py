"""The journal of one broker incarnation, through which a broker makes entries durable before it acknowledges them.

    add_entries, add_cursor -> the filling groups
    a path is free          -> one frame, one write and one fdatasync for each path; the next group fills meanwhile
    paths answer            -> on_entries_acknowledged, on_cursors_acknowledged of their sinks, in the order of the
                               frames

This module has the caller's view: life cycle, groups, back-pressure. `writer_shell` makes a group durable. All methods
must be called in the event loop's thread. Entries are added to their group in runs, without work for each one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from typing_extensions import override

from pulsar_on_spark.ledger.journal.codec_encode import Payload
from pulsar_on_spark.ledger.journal.groups import CursorGroup, EntriesGroup, Filling, Group, JournalLimits
from pulsar_on_spark.ledger.journal.journal_paths import require_fit
from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.ledger.journal.meter import JournalMeter
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.ledger.journal.sinks import CursorSink, EntrySink, ShellOwner
from pulsar_on_spark.ledger.journal.writer_shell import WriterShell
from pulsar_on_spark.model.errors import (
    InvalidArgumentError,
    JournalFencedError,
    JournalUnavailableError,
    NotEnoughCopiesError,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.storage_path import PathFailure

_LOGGER = logging.getLogger(__name__)


class Journal(ShellOwner):
    """An incarnation's journal with one quorum setting, for any number of topics.

    Args:
        register: The incarnation's register.
        paths: The storage paths to use, best ones first.
        quorum: The copies of each frame; the ensemble is the write quorum.
        entry_sink: Receives the outcome of entries.
        on_ended: Called in the event loop with the reason when the log ends other than by `close`, for example because
            another process took it over. The process must stop serving, and exit.
        mark_failed: Marks the paths that were given up as failed, with the reasons; called in the register's thread.
        limits: The journal's bounds.
        files: The file operations of the operating system.

    Raises:
        StoragePathError: a path is on a network file system.

    Attributes:
        cursor_sink: Receives the outcome of cursor records; set it before the first record is added.
        can_add: True while entries are accepted; the sinks' `on_journal_room` is called when it becomes True again.
    """

    def __init__(
        self,
        register: LogRegister,
        paths: Sequence[JournalPath],
        quorum: Quorum,
        entry_sink: EntrySink,
        *,
        on_ended: Callable[[str], None],
        mark_failed: Callable[[Sequence[PathFailure]], None],
        limits: JournalLimits | None = None,
        files: FileOps = OS_FILES,
    ) -> None:
        for path in paths:
            require_fit(path)
        self._incarnation = register.incarnation
        self._entry_sink = entry_sink
        self._on_ended = on_ended
        self._limits = limits or JournalLimits()
        self._shell = WriterShell(register, paths, quorum, self, mark_failed, self._limits, files)
        self._filling = Filling(self._limits)
        self._waiting_bytes = 0
        self._waiting = 0
        self._is_flush_due = False
        self._has_free_path = False
        self._is_idle_due = False
        self._is_closing = False
        self.meter = JournalMeter()
        self.cursor_sink: CursorSink | None = None
        self.can_add = False

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the log; entries are accepted afterwards. A caller that is cancelled meanwhile must call `abandon_log`.

        Raises:
            NotEnoughCopiesError: journal files could be created on fewer paths than the ack quorum.
            JournalFencedError: the incarnation has a log already, or its record cannot be committed.
        """
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._shell.start()
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Acknowledge the added entries, then close the log for good. Nothing can be added from now on.

        The call waits while fewer paths than the ack quorum are left. A caller that cannot wait may cancel the call,
        and leave the log to a recovery.

        Raises:
            JournalFencedError: the incarnation is over.
        """
        self._is_closing = True
        self._update_room()
        self._flush()
        await asyncio.shield(self._closed)

    def abandon_log(self) -> None:
        """Abandon the log at once, as a crash would: it stays OPEN for a recovery, and nothing more is written.

        Unacknowledged entries will never be acknowledged: the sinks get them as unknown, then `on_ended` is called.
        """
        self._shell.abandon_log()

    def offer_spare(self, path: JournalPath) -> None:
        """Allow writes to a path from now on: a new path, or a path that was given up and works again.

        Raises:
            StoragePathError: the path is on a network file system.
        """
        require_fit(path)
        self._shell.offer_spare(path)
        self._flush()

    def withdraw_path(self, path: PathId) -> None:
        """Stop using a path: its files stay valid, and the next group moves to other paths if there are enough."""
        self._shell.withdraw_path(path)

    def forget_trimmed_frames(self, before: FrameNumber) -> None:
        """Remove the frames below `before`, whose files are deleted, from the log's record."""
        self._shell.forget_trimmed_frames(before)

    @property
    def waiting_bytes(self) -> int:
        """The total size in bytes of the unacknowledged payloads."""
        return self._waiting_bytes

    def sync_latencies(self) -> dict[PathId, Latencies]:
        """Return the durations of `fdatasync` on each path, or of requests to write objects, since it came into use."""
        return self._shell.sync_latencies()

    # -- adding --------------------------------------------------------------------------------------------------------

    def fitting(self, payloads: Sequence[Payload]) -> int:
        """Return how many of these entries, from the first on, can be added at once; 0 while `can_add` is False.

        The last of them may use up the journal's room or complete its group.
        """
        if not self.can_add:
            return 0
        limits = self._limits
        entries, size_bytes = limits.waiting_entries - self._waiting, limits.waiting_bytes - self._waiting_bytes
        return self._filling.fitting(payloads, entries, size_bytes)

    def add_entries(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        message_count: int,
        publish_time_ms: int,
        payloads: Sequence[Payload],
        context: object,
    ) -> None:
        """Add a ledger's next entries; the sink gets `context` back with their outcome, which is the same for all.

        Args:
            ledger_id: An open ledger of this incarnation.
            first: The id after the ledger's last entry; it becomes the id of the first entry.
            message_count: The number of messages in each entry, for backlogs.
            publish_time_ms: The time at which the broker received the entries, in milliseconds since 1970.
            payloads: The bytes of the entries, which must not change until the outcome is known.
            context: Any object.

        Raises:
            JournalUnavailableError: `can_add` is False, or not all are `fitting`. No entry was added.
            InvalidArgumentError: an entry is too large, or the first is not the ledger's next. No entry was added.
        """
        largest_bytes = max(map(len, payloads))
        if largest_bytes > self._limits.entry_bytes or self.fitting(payloads) < len(payloads):
            self._refuse(largest_bytes)
        self._filling.add_entries(ledger_id, first, message_count, publish_time_ms, payloads, context)
        self._added(len(payloads), sum(map(len, payloads)))

    def add_cursor(self, subscription: bytes, record: bytes, context: object) -> None:
        """Add a cursor record; `cursor_sink` gets `context` back with the outcome (raises as `add_entries`)."""
        assert self.cursor_sink is not None, "the sink comes before the first record"
        size_bytes = len(subscription) + len(record)
        if not self.can_add or size_bytes > self._limits.entry_bytes:
            self._refuse(size_bytes)
        self._filling.add_cursor(subscription, record, context)
        self._added(1, size_bytes)

    def _refuse(self, size_bytes: int) -> None:
        if size_bytes > self._limits.entry_bytes:
            raise InvalidArgumentError(
                f"An entry of {size_bytes} bytes exceeds the limit of {self._limits.entry_bytes} of the journal of "
                f"{self._incarnation}: send smaller messages or batches."
            )
        state = "is over" if self._shell.is_over else "is closing" if self._is_closing else "has no room"
        raise JournalUnavailableError(f"The journal of {self._incarnation} {state}: try to add the entry again later.")

    def _added(self, records: int, size_bytes: int) -> None:
        self._waiting += records
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= self._limits.waiting_bytes or self._waiting >= self._limits.waiting_entries:
            self.can_add = False
        if not self._is_flush_due and (self._has_free_path or self._filling.has_closed):
            # Deferred, so that all entries of this turn of the event loop join the same group.
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        with self._shell.ending_at_defects():
            self._send_what_is_due()

    def _send_what_is_due(self) -> None:
        shell = self._shell
        if not self._filling.has_closed and shell.are_paths_free:
            self._filling.close()
        while self._filling.has_closed and shell.can_send:
            group = self._filling.next_closed()
            self.meter.sent(group)
            shell.send(group)
        self._has_free_path = shell.are_paths_free
        shell.expect()
        if self._is_closing and self._filling.is_empty and shell.can_send:
            shell.close_log()

    def _update_room(self) -> None:
        """Update `can_add`. It becomes True again only below half of the limits (hysteresis), if no path is behind."""
        limits = self._limits
        is_well = self._shell.is_well and not (self._is_closing or self._shell.is_behind)
        share = 1 if self.can_add else 2
        has_room = self._waiting_bytes * share < limits.waiting_bytes and self._waiting * share < limits.waiting_entries
        had_room, self.can_add = self.can_add, is_well and has_room
        if self.can_add and not had_room:
            self._entry_sink.on_journal_room()
            if self.cursor_sink is not None:
                self.cursor_sink.on_journal_room()

    # -- from the shell ------------------------------------------------------------------------------------------------

    @override
    def on_opened(self) -> None:
        self._opened.set_result(None)

    @override
    def on_groups_acknowledged(self, groups: Sequence[Group]) -> None:
        self.meter.count_acknowledged(groups)
        for group in groups:
            self._waiting -= group.records
            self._waiting_bytes -= group.payload_bytes
        for group in groups:
            if isinstance(group, EntriesGroup):
                self._entry_sink.on_entries_acknowledged(group.contexts)
            elif self.cursor_sink is not None:
                self.cursor_sink.on_cursors_acknowledged(group.contexts)

    @override
    def on_starved(self) -> None:
        if self._opened.done():
            self.can_add = False
            return
        reason = "journal files can be created on fewer paths than the ack quorum"
        self._opened.set_exception(
            NotEnoughCopiesError(
                f"The journal of {self._incarnation} is not open, because {reason}: check the storage paths."
            )
        )
        self._shell.end_log(reason)

    @override
    def on_turn(self) -> None:
        self._flush()
        self._update_room()
        if not self._is_idle_due and self._is_idle():
            self._await_idleness()

    @override
    def on_over(self, reason: str | None, groups: Sequence[Group]) -> None:
        self.can_add = False
        lost = [*groups, *self._filling.take_groups()]
        if reason is None:
            self._closed.set_result(None)
            return
        _LOGGER.error(
            "The journal of %s has ended: %s", self._incarnation, reason, extra={"incarnation": self._incarnation}
        )
        error = JournalFencedError(f"The journal of {self._incarnation} has ended ({reason}): start a new incarnation.")
        for future in (self._opened, self._closed):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, as the caller may not wait for it
        self._give_up(lost)
        self._on_ended(reason)

    def _give_up(self, lost: Sequence[Group]) -> None:
        entries = [context for group in lost if isinstance(group, EntriesGroup) for context in group.contexts]
        cursors = [context for group in lost if isinstance(group, CursorGroup) for context in group.contexts]
        if entries:
            self._entry_sink.on_entries_unknown(entries)
        if cursors and self.cursor_sink is not None:
            self.cursor_sink.on_cursors_unknown(cursors)

    # -- idleness ------------------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        """Return True if everything is acknowledged and the last frame written names an earlier LAC."""
        return self._filling.is_empty and self._shell.is_quiet

    def _await_idleness(self) -> None:
        self._is_idle_due = True
        self._loop.call_later(self._shell.idle_lac_s, self._idle, self._shell.next_frame)

    def _idle(self, next_frame: FrameNumber) -> None:
        self._is_idle_due = False
        if self._shell.is_over or not self._is_idle():
            return
        if next_frame == self._shell.next_frame:
            with self._shell.ending_at_defects():
                self._shell.idle()
        else:
            self._await_idleness()
