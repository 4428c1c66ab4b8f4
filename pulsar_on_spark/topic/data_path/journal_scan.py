"""Scan of a growing journal's frames: the frames of each entry, and the end of the acknowledged entries.

The scan reads one copy of each fragment, and another copy if the first is bad, unreachable or too short. It reads and
verifies only the frames' headers and directories; readers of the messages verify the contents. Files stay open, so they
can be read even after their deletion.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from pulsar_on_spark.ledger.journal.codec_batch import padded
from pulsar_on_spark.ledger.journal.frames import ENTRIES, FrameHead
from pulsar_on_spark.ledger.journal.log import Fragment, FrameKind, LogRecord
from pulsar_on_spark.ledger.journal.log_index import LogIndex
from pulsar_on_spark.ledger.journal.log_reader import LogReader, position_of
from pulsar_on_spark.ledger.journal.places import JournalPathTable
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import unreachable
from pulsar_on_spark.topic.entries.cutting import run_lengths
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.chain.unsealed import IndexedRun, unsealed_segment

log = logging.getLogger(__name__)

MAX_FRAMES_AT_ONCE = 1 << 17
"""Frames after which a scan returns its results so far; the next call continues."""
_MAX_ENTRY_ROWS = 1 << 20
"""Maximum number of messages of an entry; a larger number in a frame counts as damaged, and is cut to this limit."""


class JournalScan:
    """Scan of one incarnation's journal, in the order of frames.

    Attributes:
        reader: Reader of the frames; its `walk` decides the next frame and the readable end.
    """

    def __init__(self, incarnation: IncarnationId, paths: JournalPathTable, files: FileOps = OS_FILES) -> None:
        self.reader = LogReader(incarnation, paths, FrameHead, files=files)
        self._incarnation = incarnation
        self._index: LogIndex[IndexedRun, UnsealedSegment] = LogIndex()

    def main_read(self, record: LogRecord, sealed_before: int, ledgers: list[int]) -> None:
        """Update the scan after the main table was read, with records of the new view.

        Args:
            record: The journal's record.
            sealed_before: Number of the first unsealed frame in the same view.
            ledgers: Ids of the ledgers whose entries are wanted.
        """
        if not self._index.select_ledgers(ledgers):
            # Earlier frames may have entries of a ledger that is of interest only now.
            self._index = LogIndex()
            self._index.select_ledgers(ledgers)
            self.reader.walk.restart()
        self.reader.main_read(record, sealed_before)

    def forget_failures(self) -> None:
        """Allow another attempt at the files that could not be opened."""
        self.reader.walk.forget_failures()

    def close(self) -> None:
        """Close all files."""
        self.reader.close()

    def scan(self, *, every_copy: bool = False, skip: bool = False) -> None:
        """Scan the frames that exist now. Files must have been opened before the view was read (`LogWalk.is_ready`).

        Args:
            every_copy: True to look in every copy, not only in one, for a next frame that may not exist yet.
            skip: True to skip acknowledged frames that no file has, and continue after them.

        Raises:
            CopiesUnreachableError: an unreachable copy may have a frame that would be skipped.
        """
        self.reader.begin_pass()
        walk = self.reader.walk
        for _ in range(MAX_FRAMES_AT_ONCE):
            missing = walk.next
            head = self.reader.next(every=every_copy)
            if head is not None:
                if head.header.kind is FrameKind.ENTRIES:
                    self._index_entries(head)
            elif skip and walk.is_due and (causes := self.reader.unreachable()):
                raise unreachable(f"Frame {missing} of the journal of {self._incarnation}", " ".join(causes))
            elif skip and (end := walk.skip_hole()) is not None:
                log.warning(
                    "Frames %d to %d of incarnation %s are lost.",
                    missing,
                    end - 1,
                    self._incarnation,
                    extra={"incarnation": self._incarnation},
                )
            else:
                return

    def readable(
        self, topic_id: str, ledger: int, sealed_end: int, entries: int | None, *, strict: bool
    ) -> tuple[tuple[UnsealedSegment, ...], int]:
        """Return a ledger's readable unsealed segments, and the id after its last readable entry.

        The arguments are those of `LogIndex.readable`; `entries` is None for a ledger without a known end.
        """

        def make(first: int, fragment: Fragment | None, runs: list[IndexedRun]) -> UnsealedSegment:
            return unsealed_segment(self._incarnation, topic_id, ledger, first, fragment, runs)

        walk = self.reader.walk
        return self._index.readable(
            ledger, sealed_end, walk.resolved, walk.last_readable, make, entries=entries, strict=strict
        )

    def _index_entries(self, head: FrameHead) -> None:
        counts: npt.NDArray[np.int64] | None = None
        for run in head.runs():
            if self._index.is_wanted(run.ledger_id):
                if counts is None:
                    counts = self._message_counts(head)
                indexed = IndexedRun(
                    head.header.number,
                    run.first_entry,
                    run.first_entry + run.entries,
                    run.payload_bytes,
                    run_lengths(counts[run.first_row : run.first_row + run.entries]),
                    self.reader.source[0],
                    position_of(head),
                )
                self._index.add(run.ledger_id, indexed)

    def _message_counts(self, head: FrameHead) -> npt.NDArray[np.int64]:
        """Read the number of messages of each entry of a frame. No checksum covers them; only read limits use them."""
        rows = head.header.rows
        offset = head.offset + head.header.head_bytes + ENTRIES.message_bytes + 2 * padded(8 * rows)
        content = bytearray(4 * rows)
        _, file = self.reader.source
        try:
            file.source.read_into(offset, memoryview(content))
        except (OSError, StorageError) as error:
            log.warning("%s cannot be read (%s): its messages are not counted.", file.name, error)
        return np.clip(np.frombuffer(content, "<i4").astype(np.int64), 1, _MAX_ENTRY_ROWS)
