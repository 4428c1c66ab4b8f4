"""The IO around `JournalWriter`: executes its effects with files, threads and commits, and feeds back the outcomes.

    send(group) ─> the core ─> frames on their way to each path's thread ─┐
                      ^                                                    │ reports of threads come through the inbox
                      └────────────── copies' answers, commits' outcomes <─┘
                      └─> owner.on_groups_acknowledged(groups), in the order of the frames

A path is given up completely at its first failure. Before the path is marked as failed, the record is read: if the log
was taken over, the files were fenced and the path is healthy.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.ensemble import Ensemble
from pulsar_on_spark.ledger.journal.files import JournalFileHeader
from pulsar_on_spark.ledger.journal.groups import Group, JournalLimits
from pulsar_on_spark.ledger.journal.in_flight import FramesInFlight
from pulsar_on_spark.ledger.journal.inbox import Inbox
from pulsar_on_spark.ledger.journal.log import (
    NO_FRAME,
    FrameKind,
    FrameNumber,
    LogState,
    in_reading_order,
    spread_of,
)
from pulsar_on_spark.ledger.journal.messages import (
    Acknowledged,
    AddGroup,
    Append,
    BecameIdle,
    BeginFiles,
    CloseLog,
    CommitLog,
    CopyAcked,
    CopyEvent,
    CopyFailed,
    CreateFile,
    FileCreated,
    FileNotCreated,
    FragmentsTrimmed,
    LogAbandoned,
    LogClosed,
    LogFenced,
    LogOpened,
    PathWithdrawn,
    ReadLog,
    ReleaseFiles,
    Resend,
    SpareOffered,
    StartLog,
    Starved,
    WriterEffect,
    WriterEvent,
)
from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.ledger.journal.register_thread import (
    Looked,
    NotLooked,
    RegisterLost,
    RegisterReport,
    RegisterSilent,
    RegisterThread,
)
from pulsar_on_spark.ledger.journal.sinks import ShellOwner
from pulsar_on_spark.ledger.journal.writer import MAX_COMMIT_ATTEMPTS, JournalWriter
from pulsar_on_spark.model.ids import JournalFileId, PathId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import FileOps
from pulsar_on_spark.storage.storage_path import PathFailure

TICK_S = 0.25
"""Interval of checks for paths without progress."""
MAX_OBJECTS = 2_000
"""Number of groups that fill a file on an object store, whatever their size, because a recovery lists its objects."""
_LOGGER = logging.getLogger(__name__)
_GROUP_KINDS = (FrameKind.ENTRIES, FrameKind.CURSOR)

_Post: TypeAlias = CopyEvent | RegisterReport


class WriterShell:
    """An incarnation's log while it is being written; see `Journal` for the arguments."""

    def __init__(
        self,
        register: LogRegister,
        paths: Sequence[JournalPath],
        quorum: Quorum,
        owner: ShellOwner,
        mark_failed: Callable[[Sequence[PathFailure]], None],
        limits: JournalLimits,
        files: FileOps,
    ) -> None:
        self._incarnation = register.incarnation
        self._log = logging.LoggerAdapter(_LOGGER, {"incarnation": self._incarnation})
        self._given_register = register
        self._paths = {path.path_id: path for path in paths}
        self._owner = owner
        self._mark_failed = mark_failed
        self._limits = limits
        self._quorum = quorum
        name = f"{self._incarnation}/{uuid.uuid4().hex}"
        self._core = JournalWriter(name, quorum, limits.roll_bytes, limits.frames_in_flight)
        self._inbox: Inbox[_Post] = Inbox(self._wake, quorum.ack)
        self._ensemble = Ensemble(self._paths, self._incarnation, self._inbox.post, files, limits.object_commits)
        self._sending: Group | None = None
        self._in_flight = FramesInFlight(self._incarnation)
        self._deferred: list[BeginFiles] = []
        self._failures: list[PathFailure] = []
        self._failures_to_mark: list[PathFailure] = []
        self._is_opened = False
        self._is_interval_over = True
        self.is_over = False

    # -- requests of the owner -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to open the log, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._register = RegisterThread(
            self._given_register, self._mark_failed, self._inbox.post, self._limits.metadata_wait_s
        )
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        labels = {path_id: path.label for path_id, path in self._paths.items()}
        self._feed(StartLog(tuple(self._paths), labels))

    @property
    def can_send(self) -> bool:
        """True if `send` may be called now."""
        return self._core.can_add

    @property
    def is_well(self) -> bool:
        """True if the log is open, and enough paths are left to acknowledge new frames."""
        return not (self.is_over or self._core.is_starved) and bool(self._core.copies)

    @property
    def are_paths_free(self) -> bool:
        """True if an ack quorum of paths is free; otherwise a group would wait, and should keep growing instead.

        On object stores, several groups may be in flight: one more in each interval of the commit policy.
        """
        if self._ensemble.free(self._core.copies) >= self._quorum.ack:
            return True
        is_next = self._is_interval_over and len(self._in_flight) < self._limits.object_commits.in_flight
        return is_next and self._is_on_objects

    @property
    def _is_on_objects(self) -> bool:
        return self._ensemble.is_on_objects(self._core.copies)

    @property
    def idle_lac_s(self) -> float:
        """The idle time after which the last acknowledged frame's number is written."""
        interval_s = self._limits.object_commits.interval_s if self._is_on_objects else 0.0
        return max(self._limits.idle_lac_s, interval_s)

    @property
    def is_behind(self) -> bool:
        """True if a path's unconfirmed bytes have reached `waiting_bytes`, at which no entries are accepted."""
        return self._ensemble.backlog_bytes >= self._limits.waiting_bytes

    @property
    def is_quiet(self) -> bool:
        """True if all frames that were sent are acknowledged, and there was at least one."""
        return not self._in_flight and self._core.lac > NO_FRAME

    @property
    def next_frame(self) -> FrameNumber:
        """The number of the next frame."""
        return self._in_flight.next_number

    def sync_latencies(self) -> dict[PathId, Latencies]:
        """Return the durations of `fdatasync`, or of requests to write objects, by path in use."""
        return self._ensemble.sync_latencies()

    def send(self, group: Group) -> None:
        """Send a group as the next frame."""
        self._sending = group
        size_bytes = group.frame_bytes
        if self._is_on_objects:
            size_bytes = max(size_bytes, self._limits.roll_bytes // MAX_OBJECTS)
            self._begin_interval()
        self._feed(AddGroup(group.kind, size_bytes))

    def _begin_interval(self) -> None:
        if self._is_interval_over:
            self._is_interval_over = False
            self._loop.call_later(self._limits.object_commits.interval_s, self._end_interval)

    def _end_interval(self) -> None:
        self._is_interval_over = True
        if not self.is_over:
            with self.ending_at_defects():
                self._owner.on_turn()

    def expect(self) -> None:
        """Let reports wake the loop only when an ack quorum has the next frame; called after groups were sent."""
        self._inbox.expect(None if self.is_behind else self._core.awaited)

    def idle(self) -> None:
        """Write the last acknowledged frame's number for tail readers, after an idle time."""
        self._feed(BecameIdle())

    def close_log(self) -> None:
        """Close the log when all frames that were sent are acknowledged."""
        self._feed(CloseLog())

    def forget_trimmed_frames(self, before: FrameNumber) -> None:
        """Record that the files of all frames below `before` are deleted."""
        self._feed(FragmentsTrimmed(before))

    def offer_spare(self, path: JournalPath) -> None:
        """Allow writes to a path from now on."""
        self._ensemble.know(path)
        self._paths[path.path_id] = path
        self._feed(SpareOffered(path.path_id, path.label))

    def withdraw_path(self, path: PathId) -> None:
        """Create no file on this path until it is offered again."""
        self._feed(PathWithdrawn(path))

    def abandon_log(self) -> None:
        """Abandon the log as a crash would; nothing more is written."""
        if not self.is_over:
            self._ensemble.shut_down(at_once=True)
            self.end_log("it was abandoned")

    def end_log(self, reason: str | None) -> None:
        """End the log, which was closed if `reason` is None, else lost. Nothing is acknowledged afterwards."""
        if self.is_over:
            return
        self.is_over = True
        self._ticker.cancel()
        self._ensemble.shut_down()
        self._mark_failures()
        self._register.stop()
        self._owner.on_over(reason, self._in_flight.take_groups())

    @contextmanager
    def ending_at_defects(self) -> Iterator[None]:
        """End the log at any exception, because a step may be half done, which only a recovery can repair."""
        try:
            yield
        except Exception as error:
            self._log.exception("The journal's writer of %s has failed", self._incarnation)
            self.end_log(f"its writer has failed: {error!r}")

    # -- the core's effects --------------------------------------------------------------------------------------------

    def _feed(self, event: WriterEvent) -> None:
        if self.is_over:
            return
        acknowledged: list[Group] = []
        for effect in self._core.handle(event):
            match effect:
                case Append():
                    self._append(effect)
                case Acknowledged(lac):
                    acknowledged += self._in_flight.forget_up_to(lac)
                case _:
                    self._serve(effect)
        if acknowledged:
            self._owner.on_groups_acknowledged(acknowledged)

    def _serve(self, effect: WriterEffect) -> None:
        match effect:
            case BeginFiles():
                self._begin(effect)
            case Resend(copy, first, last):
                for frame in self._in_flight.between(first, last):
                    self._ensemble.append(copy, frame.header.number, (frame,), frame.header.size_bytes, sync=True)
            case CreateFile(copy):
                self._ensemble.create(copy)
            case ReleaseFiles(copies):
                self._ensemble.release_files(copies)
            case CommitLog() as commit:
                self._register.commit(commit)
            case ReadLog():
                self._register.read()
            case LogOpened():
                self._log.info("The journal of %s is open", self._incarnation)
                self._is_opened = True
                self._owner.on_opened()
            case Starved():
                self._log.error("The journal of %s has fewer paths left than its ack quorum", self._incarnation)
                self._owner.on_starved()
            case LogClosed(last_frame):
                self._log.info("The journal of %s is closed at frame %d", self._incarnation, last_frame)
                self.end_log(None)
            case LogFenced() | LogAbandoned():
                self._lost(effect)
            case _:
                raise AssertionError(f"no branch serves {effect}")

    def _append(self, effect: Append) -> None:
        facts = effect.frame
        group, self._sending = (self._sending, None) if facts.kind in _GROUP_KINDS else (None, self._sending)
        frame = self._in_flight.append(facts, group)
        for copy in effect.copies:
            self._ensemble.append(copy, facts.number, (frame,), frame.header.size_bytes, sync=effect.sync)
        deferred, self._deferred = self._deferred, []
        for begin in deferred:
            self._begin(begin)

    def _begin(self, effect: BeginFiles) -> None:
        """Begin the files once the frame before `effect.first` is encoded, because their headers contain its CRC."""
        point = self._in_flight.point_before(effect.first)
        if point is None:
            self._deferred.append(effect)
            return
        # Readers begin with this copy: only its bytes are worth the memory.
        read_first = in_reading_order(self._core.copies, spread_of(self._incarnation))[0]
        for copy in effect.copies:
            header = JournalFileHeader(self._incarnation, JournalFileId(copy.file), point)
            self._ensemble.begin_file(copy, effect.first, header.encode(), stays_cached=copy == read_first)

    def _lost(self, end: LogFenced | LogAbandoned) -> None:
        if isinstance(end, LogFenced):
            self._taken_over()
        else:
            self.end_log(f"its record could not be committed in {MAX_COMMIT_ATTEMPTS} attempts")

    def _taken_over(self) -> None:
        self.end_log(f"incarnation {self._incarnation} was taken over")

    # -- from other threads --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake the event loop; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self.ending_at_defects():
            for message in self._inbox.take_messages():
                self._take(message)
            if not self.is_over:
                self._owner.on_turn()

    def _take(self, message: _Post) -> None:
        match message:
            case CopyAcked() | FileCreated():
                if self._ensemble.take_in(message):
                    self._feed(message)
            case CopyFailed() | FileNotCreated():
                if self._ensemble.take_in(message):
                    self._failed(message)
            case RegisterSilent(reason):
                self._unreadable(reason)
            case RegisterLost(reason):
                self.end_log(reason)
            case Looked(state):
                self._looked(state)
            case NotLooked():
                self._register.post_record()  # a failed path comes back only after it was marked
            case _:
                self._feed(message)

    def _failed(self, event: CopyFailed | FileNotCreated) -> None:
        if isinstance(event, FileNotCreated) and event.exists:
            self.end_log("it has journal files already")
        else:
            self._give_up(event)

    def _unreadable(self, reason: str) -> None:
        """Continue in the current fragment while the metadata cannot be read, unless the record must be changed."""
        if self._core.waits_for_record:
            self.end_log(reason)
        else:
            self._register.read()

    # -- paths that fail -----------------------------------------------------------------------------------------------

    def _give_up(self, event: CopyFailed | FileNotCreated) -> None:
        """Give up the whole path at its first failure; it is not tried again."""
        if self.is_over:
            return
        copy, reason = event.copy, event.reason
        _LOGGER.warning(
            "The journal of %s stops using %s: %s",
            self._incarnation,
            self._paths[copy.path],
            reason,
            extra={"incarnation": self._incarnation, "path": copy.path},
        )
        self._failures.append(PathFailure(copy.path, reason))
        file_in_use = self._ensemble.give_up(copy.path)
        if isinstance(event, CopyFailed) and file_in_use is not None:
            event = CopyFailed(file_in_use, reason)  # the failed file may be released, and unknown to the core
        self._feed(event)
        self._register.post_record()

    def _looked(self, state: LogState | None) -> None:
        """Handle the state of the record, which was read after a path failed; None if there is no record.

        The path has failed unless the log was taken over, which fences its files.
        """
        if self.is_over:
            return
        if state is LogState.OPEN or (state is None and not self._is_opened):
            failures, self._failures = self._failures, []
            self._failures_to_mark += failures
        else:
            self._taken_over()

    def _tick(self) -> None:
        self._drain()
        if self.is_over:
            return
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        with self.ending_at_defects():
            self._look_for_ill_paths()

    def _look_for_ill_paths(self) -> None:
        slow_path_s, far_bytes = self._limits.slow_path_s, self._limits.waiting_bytes // 2
        ticks = round(slow_path_s / TICK_S)
        for copy in self._ensemble.quiet(ticks):
            self._give_up(CopyFailed(copy, f"it has made no progress for {slow_path_s} s"))
        for copy in self._ensemble.holding_back(self._core.copies, self._quorum.ack, far_bytes, ticks):
            reason = f"it is {far_bytes} bytes or more behind, and the other paths had to wait for {slow_path_s} s"
            self._give_up(CopyFailed(copy, reason))
        # Marked only now, so that the commit that replaces the path comes first.
        self._mark_failures()

    def _mark_failures(self) -> None:
        failures, self._failures_to_mark = self._failures_to_mark, []
        if failures:
            self._register.mark(failures)
