"""The sealer copies the entries of an incarnation's journal to sealed segments, in passes and in the order of frames.

A pass reads acknowledged frames (`JournalFrames`), splits their entries, chunk by chunk, into rows of segment files
(`SealedFileBuilder`), and commits each file together with the frame up to which it seals the log (`decide_seal`). A
file is written while the previous file is synced and committed. If another sealer is first, or if a pass fails or is
killed, its uncommitted files belong to no topic. The next pass begins at the frame up to which the main table says that
the log is sealed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.log import LogState, ended_before
from pulsar_on_spark.ledger.journal.sealing import sealable_to
from pulsar_on_spark.metadata.records import LedgerRecord, WriteRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import JournalFencedError, StorageError
from pulsar_on_spark.model.ids import FileId, IncarnationId, LedgerId, SegmentName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES
from pulsar_on_spark.topic.entries.packing import SHARED_BATCH_BYTES
from pulsar_on_spark.topic.managed_ledger.sealing.journal_cursors import CursorsInFrames
from pulsar_on_spark.topic.managed_ledger.sealing.journal_entries import entries_of, ledgers_in
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalFrames, JournalLag
from pulsar_on_spark.topic.managed_ledger.sealing.sealed_rows import SealedFileBuilder
from pulsar_on_spark.topic.managed_ledger.sealing.seals import FrameSpan, SealedFile, SealedLog, decide_seal, sealed_log

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
"""Bytes of a chunk, which is a run of frames whose entries are sorted by ledger together. A sealer needs about twice as
much memory. Chunks of 32 MiB were no faster."""
MAX_CHUNK_BYTES = 96 << 20
"""Maximum bytes of a chunk with many ledgers. Chunks grow with the number of ledgers, so that batches are not shared by
too many of them."""
_MORE_BYTES = 1 << 20
"""Bytes that are read with a chunk, which ends after the frame with which it reaches its size."""
MAX_PASS_BYTES = 1 << 30
"""Bytes of the journal after which a pass ends, so that trimming can run between passes."""
PACE_S = 1.0
"""Interval at which `pace` is called while a file is made durable."""


@dataclass(frozen=True, slots=True)
class SealReport:
    """The result of a pass.

    Attributes:
        entries: Number of entries that were sealed.
        ledgers: Number of ledgers of these entries.
        journal_bytes: Bytes of the frames that were read.
        file_bytes: Bytes of the segment files, counting one copy.
        seconds: Duration of the pass.
        lost: True if the pass ended early, because another sealer sealed some of its frames first, or a recovery took
            over the log.
    """

    entries: int = 0
    ledgers: int = 0
    journal_bytes: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    lost: bool = False


class Sealer:
    """Sealer of one incarnation's log. For one thread; it keeps one journal file open between passes.

    Args:
        root: The root.
        incarnation: The log's incarnation.
        is_live: True if the caller belongs to the incarnation's own broker. The log must then be OPEN. False for a dead
            incarnation, whose log is sealed only when it is CLOSED.
        pace: Called between batches, and at least every `PACE_S` seconds while a file is synced; it may wait, to limit
            the speed. Its errors end the pass.
        files: The file operations of the operating system.
        max_message_size_bytes: The broker's `maxMessageSize`.
    """

    def __init__(
        self,
        root: RootHandle,
        incarnation: IncarnationId,
        *,
        is_live: bool,
        pace: Callable[[], None] = lambda: None,
        files: FileOps = OS_FILES,
        max_message_size_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.incarnation = incarnation
        self.cursors = CursorsInFrames()
        """The cursor records in the frames that were sealed, for the trimmer."""
        self._root = root
        self._is_live = is_live
        self._pace = pace
        self._files = files
        self._max_message_size_bytes = max_message_size_bytes
        self._frames: JournalFrames | None = None
        self._is_sealing = False
        self._ledgers: dict[LedgerId, LedgerRecord] = {}

    def seal(self, *, tail: bool) -> SealReport:
        """Seal the currently unsealed entries in one pass, up to `MAX_PASS_BYTES`.

        Nothing is done if the log of a dead incarnation is unknown or not CLOSED.

        Args:
            tail: True to seal also the acknowledged entries in files that are still being written.

        Raises:
            JournalFencedError: this is the incarnation's own sealer, and the incarnation was taken over or has ended.
            JournalUndecidedError: an acknowledged frame cannot be read from any copy.
            NotEnoughCopiesError: new files can be written on fewer storage paths than the ack quorum.
            MetadataError: the metadata cannot be read or written.
        """
        log_ = self._found()
        if log_ is None:
            return SealReport()
        self._is_sealing = True
        try:
            with self._root.marking_failures():
                return _Pass(self, self._positioned(log_), log_, tail=tail).run()
        except BaseException:
            # The next pass begins at the frame in the main table.
            self.close()
            raise
        finally:
            self._is_sealing = False

    def lag(self) -> JournalLag:
        """Return the size of the journal's unsealed part or, during a pass, of its unread part (raises as `seal`)."""
        log_ = self._found()
        if log_ is None:
            return JournalLag()
        if self._is_sealing and self._frames is not None:
            return self._frames.unread(log_.record)
        return self._positioned(log_).lag(log_.record)

    def close(self) -> None:
        """Close the open files; a later pass opens the files that it needs."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _found(self) -> SealedLog | None:
        """Return the log; None if this sealer may not seal it.

        Raises:
            JournalFencedError: this is the incarnation's own sealer, and the log is not OPEN.
        """
        log_ = sealed_log(self._root.store.view(), self.incarnation)
        if self._is_live and (log_ is None or log_.record.state is not LogState.OPEN):
            raise JournalFencedError(
                f"The journal of incarnation {self.incarnation} in {self._root.place} is no longer open for its "
                "broker: restart that broker."
            )
        return None if log_ is None or (not self._is_live and log_.record.state is not LogState.CLOSED) else log_

    def _positioned(self, found: SealedLog) -> JournalFrames:
        begin = found.seal.sealed_before
        if self._frames is None or self._frames.next != begin:
            self.close()
            paths = self._root.current_journal_paths
            self._frames = JournalFrames(self.incarnation, paths, begin, self._files, found.given_up)
        return self._frames

    def _builder(self, found: SealedLog) -> SealedFileBuilder:
        record = found.record
        paths = self._root.writable_paths(self._root.store.view())
        quorum = Quorum(record.write_quorum, record.write_quorum, record.ack_quorum)
        return SealedFileBuilder(paths, quorum, self._max_message_size_bytes, self._files)

    def _known(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, LedgerRecord]:
        """Return, by id, the log's ledgers whose topics exist, from a view that is newer than the frames read."""
        if not self._ledgers.keys() >= set(ledgers):
            log_ = sealed_log(self._root.store.view(), self.incarnation)
            self._ledgers = {LedgerId(ledger.ledger_id): ledger for ledger in log_.ledgers()} if log_ else {}
        return self._ledgers

    def _commit(self, span: FrameSpan, builder: SealedFileBuilder | None) -> SealedFile | None:
        """Make a file durable, and commit it together with the span of frames that it seals.

        Returns:
            The committed file; None if `builder` is None, or if all topics of its file are deleted.

        Raises:
            _LostError: another process has sealed these frames or taken over the log; the new file is deleted.
        """
        sealed = None if builder is None else builder.finish()
        if sealed is not None and sealed.written.failures:
            self._root.mark_failed(sealed.written.failures)
        is_done = False

        def decide(view: View) -> Change | None:
            nonlocal is_done
            change = decide_seal(view, span, sealed, datetime.now(UTC))
            is_done = change is not None
            return change

        view = self._root.store.commit(decide)
        verdict = None if sealed is None else view.get(WriteRecord, sealed.write_id)
        is_named = verdict is not None and verdict.status == "committed"
        if sealed is not None and not is_named:
            # The write id will never be committed: the file's topics are deleted, or the pass was overtaken.
            self._delete(sealed.written.file_id)
        if not is_done and not is_named:
            raise _LostError
        return sealed if is_named else None

    def _delete(self, file_id: FileId) -> None:
        for path in self._root.storage_paths(self._root.store.view()).values():
            with suppress(StorageError):  # garbage collection deletes a file that remains
                path.delete_segment(SegmentName(file_id), self._files)


def _chunk_bytes(ledgers: int) -> int:
    """Return the size in bytes at which a chunk with entries of this many ledgers ends."""
    return min(max(CHUNK_BYTES, ledgers * SHARED_BATCH_BYTES), MAX_CHUNK_BYTES)


class _LostError(Exception):
    """Another sealer has sealed the frames first, or a recovery has taken over the log."""


class _Pass:
    """One pass of a sealer: it reads and encodes in the caller's thread, and syncs and commits in a second thread."""

    def __init__(self, sealer: Sealer, frames: JournalFrames, found: SealedLog, *, tail: bool) -> None:
        self._sealer = sealer
        self._frames = frames
        self._found = found
        self._tail = tail
        self._begin = frames.next
        self._builder: SealedFileBuilder | None = None
        self._committing: Future[SealedFile | None] | None = None
        self._entries = self._journal_bytes = self._file_bytes = 0
        self._ledgers: set[LedgerId] = set()

    def run(self) -> SealReport:
        """Seal frames until `MAX_PASS_BYTES` are read or no frame is left that may be sealed."""
        started = time.monotonic()
        self._frames.begin_pass()
        lost = False
        with ThreadPoolExecutor(1, thread_name_prefix="sealer-commit") as executor:
            try:
                while self._journal_bytes < MAX_PASS_BYTES and self._add_chunk():
                    if self._frames.given_up is not None or (self._builder is not None and self._builder.is_full):
                        self._submit(executor)
                self._submit(executor)
                self._await_commit()
            except _LostError:
                lost = True
                self._sealer.close()
            finally:
                if self._builder is not None:
                    self._builder.abort()
        seconds = time.monotonic() - started
        return SealReport(self._entries, len(self._ledgers), self._journal_bytes, self._file_bytes, seconds, lost)

    def _add_chunk(self) -> bool:
        """Add the entries of the next chunk to the builder; return False if there is none now."""
        frames = self._chunk()
        if frames:
            self._add(frames)
        return bool(frames)

    def _chunk(self) -> list[Frame]:
        """Read the next frames that may be sealed, up to the size of a chunk; empty if there are none now.

        Those that are read at once share one window: their payloads need not be copied together.
        """
        record, frames = self._found.record, self._frames
        self._pass_given_up()
        stop = None if self._tail or record.state is LogState.CLOSED else ended_before(record)
        chunk: list[Frame] = []
        after: Frame | None = None
        ledgers: set[LedgerId] = set()
        size_bytes = 0
        frames.read_ahead(CHUNK_BYTES + _MORE_BYTES)
        while size_bytes < _chunk_bytes(len(ledgers)) and (stop is None or frames.next < stop) and not frames.given_up:
            frame = frames.read(record)
            if frame is None:
                break
            chunk.append(frame)
            ledgers.update(ledgers_in(frame))
            size_bytes += frame.header.size_bytes
        # Only later frames show that a frame is acknowledged, and a chunk may be a single long one.
        while chunk and sealable_to(record, frames.lac) < chunk[-1].header.number and not frames.given_up:
            self._sealer._pace()
            frame = frames.read(record)
            if frame is None:
                break
            after = after or frame
        limit = sealable_to(record, frames.lac)
        sealable = [frame for frame in chunk if frame.header.number <= limit]
        left = chunk[len(sealable)] if len(sealable) < len(chunk) else after
        if left is not None:
            frames.rewind(left)
        return sealable

    def _pass_given_up(self) -> None:
        """Skip the next frames if an operator has given them up."""
        frames = self._frames
        if (lost := frames.given_up) is not None:
            # The file with the earlier entries was finished, because the entries of a segment have no gaps.
            frames.pass_given_up()
            self._sealer.cursors.pass_over(lost[0], frames.next)
            log.warning(
                "Frames %d to %d of incarnation %s were given up, so the entries in them are lost.",
                *(lost[0], frames.next - 1, self._sealer.incarnation),
                extra={"incarnation": self._sealer.incarnation},
            )

    def _add(self, frames: list[Frame]) -> None:
        sealer = self._sealer
        sealer.cursors.add_frames(frames)
        entries = entries_of(frames)
        counts = {} if entries is None else dict(zip(entries.ledgers.tolist(), entries.counts.tolist(), strict=True))
        existing = sealer._known(counts)
        wanted = counts.keys() & existing.keys()
        if entries is not None and wanted:
            if self._builder is None:
                self._builder = sealer._builder(self._found)
            self._builder.add(entries, existing, sealer._pace)
        self._entries += sum(counts[ledger] for ledger in wanted)
        self._ledgers |= wanted
        self._journal_bytes += sum(frame.header.size_bytes for frame in frames)

    def _submit(self, executor: ThreadPoolExecutor) -> None:
        """Begin to commit the builder's file, once the previous file is committed."""
        self._await_commit()
        if self._frames.next > self._begin:
            span = FrameSpan(self._sealer.incarnation, self._found.record.state, self._begin, self._frames.next)
            builder, self._builder = self._builder, None
            self._begin = span.end
            self._committing = executor.submit(self._sealer._commit, span, builder)

    def _await_commit(self) -> None:
        committing, self._committing = self._committing, None
        if committing is not None:
            while not wait((committing,), PACE_S).done:
                self._sealer._pace()  # shows that the child is alive while slow disks sync
            sealed = committing.result()
            self._file_bytes += sealed.written.length if sealed is not None else 0
