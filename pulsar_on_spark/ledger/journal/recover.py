"""Recovery of the log of a dead writer: the IO for the decisions of `Recovery`. Any process may run it at any time.

Each storage path has one thread that fences and reads its copies, and another one that writes frames back; the caller's
thread decides and commits. Memory holds positions of frames and a few MiB for each path, because frames are read again
when they are written back.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.copy_protocol import FenceAnswer, FenceFirst, ReadFrames
from pulsar_on_spark.ledger.journal.ensemble import Ensemble
from pulsar_on_spark.ledger.journal.files import JournalFileHeader
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.journal_paths import RecoveredCopy, recovered_copy
from pulsar_on_spark.ledger.journal.log import Copy, FrameNumber, LogRecord
from pulsar_on_spark.ledger.journal.messages import (
    BeginFiles,
    CommitLog,
    CopyAcked,
    CopyEvent,
    CopyFailed,
    CopyFenced,
    CopyRead,
    CopySilent,
    CreateFile,
    FenceCopy,
    FileCreated,
    FileNotCreated,
    GiveUpPath,
    LogCommitUnknown,
    LogRecovered,
    ReadCopy,
    ReadLog,
    RecoveryEffect,
    RecoveryEvent,
    RecoveryStopped,
    ReleaseFiles,
    StartRecovery,
    WriteBack,
)
from pulsar_on_spark.ledger.journal.places import JournalPathTable
from pulsar_on_spark.ledger.journal.recovery import Recovery
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.model.errors import JournalUndecidedError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, FileOps

TICK_S = 0.25
SILENT_AFTER_S = 30.0
"""A path without progress for this time counts as not answering."""
DISPENSABLE_AFTER_S = 2.0
"""Time for which a close waits for files beyond the ack quorum; sealing soon writes all copies of the entries."""
_LOGGER = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int], None]
"""Function that is called repeatedly, in several threads, with the number of bytes scanned since its last call."""


def ignore_progress(scanned_bytes: int) -> None:
    """Ignore progress."""


def recover(
    register: LogRegister,
    paths: JournalPathTable,
    writable: Sequence[PathId],
    *,
    give_up: Collection[PathId] = (),
    progress: Progress = ignore_progress,
    files: FileOps = OS_FILES,
    silent_after_s: float = SILENT_AFTER_S,
) -> LogRecord:
    """Close the log for good: fence its writer, find its end, keep every acknowledged frame.

    Repeated or concurrent calls are safe; a CLOSED log is left unchanged.

    Args:
        register: The incarnation's register.
        paths: Returns the root's current storage paths; the record may name a path that was added recently.
        writable: Ids of the paths that may be written to, best ones first; frames whose acknowledgement is uncertain
            are copied there.
        give_up: Ids of the paths that an operator accepts as lost for good. Data that cannot be read on these paths
            count as absent, so acknowledged frames that only they had are lost. Data that can be read on them still
            count. The record names the paths.
        progress: Called in several threads with the number of bytes read since its last call.
        files: The file operations of the operating system.
        silent_after_s: Seconds without progress after which a path counts as not answering.

    Returns:
        The closed record.

    Raises:
        JournalUndecidedError: the last acknowledged frame cannot be determined now, too many commits have failed, or
            another recovery has taken over. No acknowledged frame is lost; call again later.
        MetadataError: the record cannot be read or written.
    """
    targets = [path for path in writable if path not in give_up]
    return _Recovering(register, paths, targets, progress, files, silent_after_s).run(give_up)


@dataclass(frozen=True, slots=True)
class _Answered:
    """A copy's answer to `request`; `problem` is a text for operators."""

    request: FenceFirst | ReadFrames
    event: CopyFenced | CopyRead
    problem: str


_Message: TypeAlias = CopyEvent | _Answered
_Request: TypeAlias = tuple[RecoveredCopy, Copy, FenceFirst | ReadFrames]


class _ReaderThread:
    """Thread that serves the read requests for one path, one at a time, and closes the files at the end."""

    def __init__(self, post: Callable[[_Message], None]) -> None:
        self._post = post
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._moved = False
        self.waiting: dict[Copy, FenceFirst | ReadFrames] = {}
        self.quiet_ticks = 0
        threading.Thread(target=self._run, name="journal-recover", daemon=True).start()

    def ask(self, file: RecoveredCopy, copy: Copy, request: FenceFirst | ReadFrames) -> None:
        """Queue a request for a copy."""
        self.waiting[copy] = request
        self._requests.put((file, copy, request))

    def moved(self) -> None:
        """Record that the thread has made progress; called in the reader's own thread."""
        self._moved = True

    def tick(self) -> int:
        """Count a tick; return the number of successive ticks for which requests have waited without progress."""
        self.quiet_ticks = 0 if self._moved or not self.waiting else self.quiet_ticks + 1
        self._moved = False
        return self.quiet_ticks

    def stop(self) -> None:
        """End the thread after its queued requests. Return at once, because the disk may hang."""
        self._requests.put(None)

    def _run(self) -> None:
        files: set[RecoveredCopy] = set()
        try:
            while (request := self._requests.get()) is not None:
                files.add(request[0])
                self._answer(*request)
        finally:
            for file in files:
                file.close()

    def _answer(self, file: RecoveredCopy, copy: Copy, wanted: FenceFirst | ReadFrames) -> None:
        answer = file.answer(wanted)
        event: CopyFenced | CopyRead
        if isinstance(answer, FenceAnswer):
            event = CopyFenced(copy, answer.fenced, answer.first, answer.lac)
        else:
            event = CopyRead(copy, answer.start, answer.frames, answer.end)
        self._post(_Answered(wanted, event, file.problem))


class _Recovering:
    """An attempt at a recovery."""

    def __init__(
        self,
        register: LogRegister,
        paths: JournalPathTable,
        writable: Sequence[PathId],
        progress: Progress,
        files: FileOps,
        silent_after_s: float,
    ) -> None:
        self._register = register
        self._incarnation: IncarnationId = register.incarnation
        self._paths = paths
        self._progress = progress
        self._files = files
        self._quiet_ticks = round(silent_after_s / TICK_S)
        self._known = paths()
        targets = tuple(path for path in writable if path in self._known)
        self._core = Recovery(f"r-{uuid.uuid4().hex}", targets)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._ensemble = Ensemble(self._known, self._incarnation, self._inbox.put, files)
        self._copies: dict[Copy, RecoveredCopy] = {}
        self._readers: dict[PathId, _ReaderThread] = {}
        self._problems: dict[Copy, str] = {}
        self._metadata_problem = ""
        self._dispensable_ticks = 0
        self._begun: dict[Copy, FrameNumber] = {}
        self._result: LogRecord | None = None

    def run(self, give_up: Collection[PathId]) -> LogRecord:
        """Recover the log, and return its CLOSED record (raises as `recover`).

        Args:
            give_up: Ids of storage paths that an operator accepts as lost for good (see `recover`).
        """
        try:
            for path in sorted(give_up):
                self._feed(GiveUpPath(path))
            self._feed(StartRecovery())
            while self._result is None:
                try:
                    message = self._inbox.get(timeout=TICK_S)
                except queue.Empty:
                    self._tick()
                else:
                    self._take(message)
        finally:
            self._ensemble.shut_down()
            for reader in self._readers.values():
                reader.stop()
        return self._result

    def _feed(self, event: RecoveryEvent) -> None:
        events = [event]
        while events:
            for effect in self._core.handle(events.pop(0)):
                answer = self._serve(effect)
                if answer is not None:
                    events.append(answer)

    def _serve(self, effect: RecoveryEffect) -> RecoveryEvent | None:
        """Execute an effect and return its outcome; None if the effect has no outcome, or the outcome comes later."""
        match effect:
            case ReadLog():
                return self._register.read()
            case CommitLog():
                answer = self._register.commit(effect)
                self._metadata_problem = answer.reason if isinstance(answer, LogCommitUnknown) else ""
                return answer
            case FenceCopy(copy):
                return self._ask(copy, FenceFirst())
            case ReadCopy(copy, start, limit):
                return self._ask(copy, ReadFrames(start, limit))
            case CreateFile(copy):
                self._ensemble.create(copy)
            case BeginFiles(copies, first):
                self._begun.update(dict.fromkeys(copies, first))
            case WriteBack():
                self._write_back(effect)
            case ReleaseFiles(copies):
                self._ensemble.release_files(copies)
            case LogRecovered(record):
                self._result = record
                _LOGGER.info(
                    "The journal of %s is recovered up to frame %s",
                    self._incarnation,
                    record.last_frame,
                    extra={"incarnation": self._incarnation},
                )
            case RecoveryStopped(reason):
                raise JournalUndecidedError(self._explained(reason))
        return None

    def _ask(self, copy: Copy, request: FenceFirst | ReadFrames) -> CopySilent | None:
        """Send a request to a copy's path; None if the path will answer, else the event that it does not."""
        path = self._paths().get(copy.path)
        if path is None:
            self._problems[copy] = f"storage path {copy.path} is not known to the root"
            return CopySilent(copy)
        reader = self._readers.get(copy.path)
        if reader is None:
            reader = self._readers[copy.path] = _ReaderThread(self._inbox.put)
        if copy not in self._copies:
            self._copies[copy] = recovered_copy(path, self._incarnation, copy, self._watched(reader), self._files)
        reader.ask(self._copies[copy], copy, request)
        return None

    def _watched(self, reader: _ReaderThread) -> Progress:
        def progress(scanned_bytes: int) -> None:
            reader.moved()
            self._progress(scanned_bytes)

        return progress

    def _write_back(self, effect: WriteBack) -> None:
        placed = self._copies[effect.source].placed
        frames = [placed[number] for number in range(effect.first, effect.last + 1)]
        first = self._begun.pop(effect.copy, None)
        if first is not None:
            assert first == effect.first, "a file begins with the first frame that is written back"
            crc = frames[0].position.chain.crc
            header = JournalFileHeader(self._incarnation, JournalFileId(effect.copy.file), ChainPoint(first, crc))
            self._ensemble.begin_file(effect.copy, first, header.encode())
        self._ensemble.append(effect.copy, effect.first, frames, 0, sync=True)

    def _take(self, message: _Message) -> None:
        match message:
            case _Answered(request, event, problem):
                copy = event.copy
                waiting = self._readers[copy.path].waiting
                if waiting.get(copy) is not request:
                    return  # the file was given up, and its replacement may be under way
                del waiting[copy]
                if problem:
                    self._problems[copy] = problem
                self._feed(event)
            case CopyAcked() | FileCreated():
                if self._ensemble.take_in(message):
                    self._feed(message)
            case CopyFailed() | FileNotCreated():
                if self._ensemble.take_in(message):
                    self._lost(message)

    def _lost(self, event: CopyFailed | FileNotCreated) -> None:
        self._problems[event.copy] = event.reason
        self._ensemble.give_up(event.copy.path)
        self._feed(event)

    def _tick(self) -> None:
        for path, reader in self._readers.items():
            if reader.tick() > self._quiet_ticks:
                reader.quiet_ticks = 0
                silent, reader.waiting = reader.waiting, {}
                for copy in sorted(silent):
                    self._problems[copy] = f"storage path {path} does not answer"
                    self._feed(CopySilent(copy))
        dispensable = self._core.dispensable
        self._dispensable_ticks = self._dispensable_ticks + 1 if dispensable else 0
        is_long = self._dispensable_ticks > DISPENSABLE_AFTER_S / TICK_S
        for copy in {*self._ensemble.quiet(self._quiet_ticks), *(dispensable if is_long else ())}:
            self._lost(CopyFailed(copy, f"storage path {copy.path} does not answer"))

    def _explained(self, reason: str) -> str:
        problems = "; ".join(
            f"{self._known.get(copy.path, f'storage path {copy.path}')}: {problem}"
            for copy, problem in sorted(self._problems.items())
        )
        if self._metadata_problem:
            return (
                f"The journal of {self._incarnation} is not recovered, because its record cannot be read or written "
                f"({reason}; last error: {self._metadata_problem}): try again later."
            )
        details = f" ({problems})" if problems else ""
        return (
            f"The journal of {self._incarnation} is not recovered: {reason}{details}. Bring its storage paths back and "
            "try again, or give up those that are lost for good (`pulsarpy recover --give-up-path`); acknowledged "
            "data were not changed."
        )
