"""Looking through one journal's frames as it grows: which entries are where, and what is acknowledged.

One good copy of each fragment is looked at; another one where it is bad, away or too short. Headers and directories
are read and checked, contents are not: whoever reads the messages checks those. Files stay open, so what was opened
can be read after its deletion.
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
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.loss import unreachable
from pulsar_on_spark.storage.storage_path import PathTable
from pulsar_on_spark.topic.entries.cutting import run_lengths
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.chain.unsealed import IndexedRun, unsealed_segment

log = logging.getLogger(__name__)

MAX_FRAMES_AT_ONCE = 1 << 17
"""A scan that has come so far lets its reader have what it found; the next one goes on."""
_MAX_ENTRY_ROWS = 1 << 20
"""More messages than this no entry has, so the number is damaged."""


class JournalScan:
    """The frames of one incarnation's journal, looked at in order.

    Attributes:
        reader: The frames; its `walk` decides which one is next and what may be read.
    """

    def __init__(self, incarnation: IncarnationId, paths: PathTable, files: FileOps = OS_FILES) -> None:
        self.reader = LogReader(incarnation, paths, FrameHead, files=files)
        self._incarnation = incarnation
        self._files = files
        self._index: LogIndex[IndexedRun, UnsealedSegment] = LogIndex()

    def main_read(self, record: LogRecord, sealed_before: int, ledgers: list[int]) -> None:
        """Take what main says now.

        Args:
            record: The log's record.
            sealed_before: The first frame that is not sealed, of the same view.
            ledgers: The ledgers of interest.
        """
        if not self._index.want(ledgers):
            # There were entries of a ledger that is wanted only now.
            self._index = LogIndex()
            self._index.want(ledgers)
            self.reader.walk.restart()
        self.reader.main_read(record, sealed_before)

    def forget_failures(self) -> None:
        """Allow files that could not be opened to be tried again."""
        self.reader.walk.forget_failures()

    def close(self) -> None:
        """Close all files."""
        self.reader.close()

    def scan(self, *, every_copy: bool = False, skip: bool = False) -> None:
        """Look at what has come since. Files were opened before main was read (`LogWalk.is_ready`).

        Args:
            every_copy: Look for a next frame, which need not exist, in each copy and not in one alone.
            skip: Go on behind acknowledged frames that no file has.

        Raises:
            CopiesUnreachableError: a frame would be skipped that an unreachable copy may have.
        """
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
        """What may be read of a ledger behind its sealed entries (see `LogIndex.readable`)."""

        def make(first: int, fragment: Fragment | None, runs: list[IndexedRun]) -> UnsealedSegment:
            return unsealed_segment(self._incarnation, topic_id, ledger, first, fragment, runs)

        walk = self.reader.walk
        return self._index.readable(ledger, sealed_end, walk.resolved, walk.limit, make, entries=entries, strict=strict)

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
        """Messages of each entry of a frame. They are not under the header's checksum, and only limits rest on them."""
        rows = head.header.rows
        offset = head.offset + head.header.head_bytes + ENTRIES.message_bytes + 2 * padded(8 * rows)
        content = bytearray(4 * rows)
        _, file = self.reader.source
        try:
            self._files.read_into(file.fd, offset, memoryview(content))
        except OSError as error:
            log.warning("%s cannot be read (%s): its messages are not counted.", file.name, error)
        return np.clip(np.frombuffer(content, "<i4").astype(np.int64), 1, _MAX_ENTRY_ROWS)
