"""The journal files that a process writes, by path: each file's unconfirmed frames, and the paths that are too slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pulsar_on_spark.ledger.journal.copies import FrameBytes, NewFile, PathWriter
from pulsar_on_spark.ledger.journal.journal_paths import create_file, path_writer
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber
from pulsar_on_spark.ledger.journal.messages import CopyAcked, CopyEvent, CopyFailed, FileCreated, FileNotCreated
from pulsar_on_spark.ledger.journal.object_protocol import DEFAULT_COMMITS, CommitPolicy
from pulsar_on_spark.ledger.journal.places import JournalPath, is_on_objects
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.files import OS_FILES, FileOps


@dataclass(slots=True)
class _PathQueue:
    """A path in use, with its unconfirmed frames by file, as (number, bytes).

    A file in `released` gets no more frames, but counts for the backlog until the path has caught up.
    `behind_ticks` grows with each tick at which the path is far behind while the others are idle.
    """

    writer: PathWriter
    outstanding: dict[Copy, deque[tuple[FrameNumber, int]]] = field(default_factory=dict)
    released: set[Copy] = field(default_factory=set)
    backlog_bytes: int = 0
    quiet_ticks: int = 0
    behind_ticks: int = 0

    @property
    def is_busy(self) -> bool:
        return any(self.outstanding.values())


class Ensemble:
    """The files that this process writes in one incarnation's log. Used by one thread.

    Args:
        paths: All storage paths that the log may use.
        incarnation: The log's incarnation.
        post: Called with each event, in other threads. The owner must pass the event to `take_in` before its core
            handles the event.
        files: The file operations of the operating system.
        policy: The rule for cutting objects, on paths on object stores.
    """

    def __init__(
        self,
        paths: Mapping[PathId, JournalPath],
        incarnation: IncarnationId,
        post: Callable[[CopyEvent], None],
        files: FileOps = OS_FILES,
        policy: CommitPolicy = DEFAULT_COMMITS,
    ) -> None:
        self._paths = dict(paths)
        self._incarnation = incarnation
        self._post = post
        self._files = files
        self._policy = policy
        self._states: dict[PathId, _PathQueue] = {}
        self._creating: dict[Copy, int] = {}
        self._created: dict[Copy, NewFile] = {}
        self._made: dict[Copy, NewFile] = {}
        """Files whose `FileCreated` is not handled yet; written by other threads, under `_ending`."""
        self._ending = threading.Lock()
        self._is_over = False

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that the slowest path has not confirmed yet."""
        return max((state.backlog_bytes for state in self._states.values()), default=0)

    def sync_latencies(self) -> dict[PathId, Latencies]:
        """Return the durations of `fdatasync`, or of requests to write objects, by path in use."""
        return {path: state.writer.syncs for path, state in self._states.items()}

    def know(self, path: JournalPath) -> None:
        """Add a path, or replace a path of the same id whose directory or URL has changed."""
        self._paths[path.path_id] = path
        state = self._states.get(path.path_id)
        if state is not None and state.writer.path != path and not state.outstanding:
            self._states.pop(path.path_id).writer.stop()

    def free(self, copies: Iterable[Copy]) -> int:
        """Return the number of these copies that are on idle paths."""
        states = (self._states.get(copy.path) for copy in copies)
        return sum(state is not None and not state.is_busy for state in states)

    def is_on_objects(self, copies: Iterable[Copy]) -> bool:
        """Return True if one of these copies is on an object store."""
        return any(is_on_objects(self._paths[copy.path]) for copy in copies)

    # -- files ---------------------------------------------------------------------------------------------------------

    def create(self, copy: Copy) -> None:
        """Create a file in a thread of its own, because a disk may hang, and post the outcome."""
        path, incarnation, files, post = self._paths[copy.path], self._incarnation, self._files, self._post

        def work() -> None:
            try:
                new = create_file(path, incarnation, copy, files)
            except (OSError, PulsarpyError) as error:
                exists = isinstance(error, FileExistsError)
                post(FileNotCreated(copy, f"a journal file cannot be made: {error}", exists))
                return
            with self._ending:
                if not self._is_over:
                    self._made[copy] = new
                    post(FileCreated(copy))
                    return
            _close(new)

        self._creating[copy] = 0
        threading.Thread(target=work, name=f"journal-create-{copy.path}", daemon=True).start()

    def begin_file(self, copy: Copy, first: FrameNumber, header: bytes, *, stays_cached: bool = True) -> None:
        """Begin a created file with frame `first` (arguments as of `PathWriter.begin_file`).

        No effect if the path was given up during the file's creation.
        """
        new = self._created.pop(copy, None)
        if new is None:
            return
        state = self._states.get(copy.path)
        if state is None:
            path = self._paths[copy.path]
            writer = path_writer(path, self._incarnation, self._post, self._files, self._policy)
            state = self._states[copy.path] = _PathQueue(writer)
        state.outstanding[copy] = deque()
        state.writer.begin_file(copy, new, first, header, stays_cached=stays_cached)

    def append(
        self, copy: Copy, first: FrameNumber, frames: Sequence[FrameBytes], size_bytes: int, *, sync: bool
    ) -> None:
        """Append frames to a begun file; frames for a lost file are dropped."""
        state = self._states.get(copy.path)
        waiting = None if state is None else state.outstanding.get(copy)
        if state is None or waiting is None:
            return
        if sync:
            waiting.append((first + len(frames) - 1, size_bytes))
            state.backlog_bytes += size_bytes
        state.writer.append(copy, first, frames, size_bytes, sync=sync)

    def release_files(self, copies: Iterable[Copy]) -> None:
        """Close these files after the writes that are queued for them."""
        for copy in copies:
            self._creating.pop(copy, None)
            if copy in self._created:
                _close(self._created.pop(copy))
            state = self._states.get(copy.path)
            if state is not None and copy in state.outstanding:
                state.writer.release_file(copy)
                state.released.add(copy)
                if not state.outstanding[copy]:
                    state.released.discard(copy)
                    del state.outstanding[copy]

    # -- reports of threads --------------------------------------------------------------------------------------------

    def take_in(self, event: CopyEvent) -> bool:
        """Record an event of a thread.

        Returns:
            True if the core must handle the event; False if the caller must drop it, because it is out of date or its
            file is no longer needed.
        """
        match event:
            case CopyAcked(copy, watermark):
                self._confirmed(copy, watermark)
                return True
            case CopyFailed(copy):
                return self._is_failure(copy, is_fenced=event.is_fenced)
            case FileCreated(copy):
                return self._is_wanted(copy)
            case FileNotCreated(copy):
                return self._creating.pop(copy, None) is not None

    def _confirmed(self, copy: Copy, watermark: FrameNumber) -> None:
        state = self._states.get(copy.path)
        waiting = None if state is None else state.outstanding.get(copy)
        if state is None or waiting is None:
            return
        state.quiet_ticks = 0
        while waiting and waiting[0][0] <= watermark:
            state.backlog_bytes -= waiting.popleft()[1]
        if not waiting and copy in state.released:
            state.released.discard(copy)
            del state.outstanding[copy]

    def _is_failure(self, copy: Copy, *, is_fenced: bool) -> bool:
        """Return True if the failure of a file is a failure of its path.

        The path has not failed if the file belongs to an ended fragment and was trimmed while the path lagged behind.
        """
        state = self._states.get(copy.path)
        if state is None or copy not in state.outstanding:
            return False
        if not (is_fenced and copy in state.released):
            return True
        state.backlog_bytes -= sum(size_bytes for _, size_bytes in state.outstanding.pop(copy))
        state.released.discard(copy)
        return False

    def _is_wanted(self, copy: Copy) -> bool:
        """Return True if the created file is still needed.

        The result is False for a file that was given up or released during its creation, or closed by `shut_down`.
        """
        is_waited_for = self._creating.pop(copy, None) is not None
        with self._ending:
            new = self._made.pop(copy, None)
        if new is None:
            return False
        if is_waited_for:
            self._created[copy] = new
        else:
            _close(new)
        return is_waited_for

    # -- paths ---------------------------------------------------------------------------------------------------------

    def quiet(self, ticks: int) -> list[Copy]:
        """Count a tick; return a file on each path whose pending work has made no progress for more than `ticks` ticks.

        Ticks are counted instead of reading a clock, because they pause when the whole process is paused.
        """
        copies = []
        for state in self._states.values():
            state.quiet_ticks = state.quiet_ticks + 1 if state.is_busy else 0
            if state.quiet_ticks > ticks:
                copies.append(next(copy for copy, waiting in state.outstanding.items() if waiting))
        for copy in self._creating:
            self._creating[copy] += 1
            if self._creating[copy] > ticks:
                copies.append(copy)
        return copies

    def holding_back(self, copies: Sequence[Copy], ack_quorum: int, far_bytes: int, ticks: int) -> list[Copy]:
        """Count a tick; return a file on each path that has held the others back for more than `ticks` ticks in total.

        Args:
            copies: The files that groups are written to now.
            ack_quorum: The number of paths that groups need; a path is never returned if fewer would be left.
            far_bytes: Unconfirmed bytes above which a path is far behind.
            ticks: Limit of the ticks at which a path was far behind while enough others were idle, minus the ticks at
                which the others were busy. So a path is returned if it has less than half of the others' speed, but
                never for being a little slower.
        """
        slow_copies = []
        for path, state in self._states.items():
            if state.backlog_bytes < far_bytes:
                state.behind_ticks = 0
                continue
            are_others_idle = self.free(copy for copy in copies if copy.path != path) >= ack_quorum
            state.behind_ticks = max(0, state.behind_ticks + (1 if are_others_idle else -1))
            if state.behind_ticks > ticks:
                slow_copies.append(next(copy for copy, waiting in state.outstanding.items() if waiting))
        return slow_copies

    def give_up(self, path: PathId) -> Copy | None:
        """Stop using this path, drop its queued writes, and ignore its later events.

        Returns:
            A file of the path that was not released, to report to the core; None if there is none.
        """
        unreleased = [copy for copy in (*self._creating, *self._created) if copy.path == path]
        if path in self._states:
            unreleased += [copy for copy in self._states[path].outstanding if copy not in self._states[path].released]
        for copy in [copy for copy in self._creating if copy.path == path]:
            del self._creating[copy]
        for copy in [copy for copy in self._created if copy.path == path]:
            _close(self._created.pop(copy))
        state = self._states.pop(path, None)
        if state is not None:
            state.writer.abandon()
        return next(iter(unreleased), None)

    def shut_down(self, *, at_once: bool = False) -> None:
        """Let all threads end, after their queued work or `at_once`. Do not wait for them, because a disk may hang."""
        with self._ending:
            self._is_over = True
        self._creating.clear()
        for new in (*self._created.values(), *self._made.values()):  # no thread adds to `_made` after `_is_over`
            _close(new)
        self._created.clear()
        self._made.clear()
        for state in self._states.values():
            if at_once:
                state.writer.abandon()
            else:
                state.writer.stop()
        self._states.clear()


def _close(new: NewFile) -> None:
    with suppress(OSError):
        new.close()
