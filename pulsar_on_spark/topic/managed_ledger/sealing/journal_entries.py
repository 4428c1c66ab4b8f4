"""The entries of journal frames as columns, sorted by ledger, so that a sealer can decode many entries in one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pulsar_on_spark.ledger.journal.frames import RUN, Frame
from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.protocol.field_walk import Int64s
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES
from pulsar_on_spark.topic.entries.rows import GROUP_ENTRIES
from pulsar_on_spark.topic.entries.stored import StoredEntries


@dataclass(frozen=True, slots=True)
class JournalEntries:
    """Entries of many ledgers, sorted by ledger and entry. The entries of a ledger have no gaps.

    Attributes:
        ledgers: The ids of the ledgers, ascending.
        counts: The number of entries of each ledger.
        taken_min_ms: The earliest time at which the broker received an entry of each ledger, in ms since 1970.
        taken_max_ms: The latest time at which the broker received an entry of each ledger, in ms since 1970.
    """

    ledgers: Int64s
    counts: Int64s
    taken_min_ms: Int64s
    taken_max_ms: Int64s
    _ledger_ids: Int64s
    _entry_ids: Int64s
    _frames: Int64s
    """Index of each entry's frame."""
    _starts: Int64s
    """Start of each entry in the payloads of its frame."""
    _ends: Int64s
    _payloads: Sequence[memoryview]
    """The payloads of each frame. They are joined group by group: all at once would need as much memory again."""

    def groups(self, wanted: Collection[LedgerId]) -> Iterator[StoredEntries]:
        """Yield the entries of some ledgers, in groups of about `RECORD_BATCH_BYTES` and at most `GROUP_ENTRIES`."""
        rows = np.arange(len(self._starts))
        if not set(self.ledgers.tolist()).issubset(wanted):
            rows = np.flatnonzero(np.isin(self._ledger_ids, list(wanted)))
        ends = np.cumsum(self._ends[rows] - self._starts[rows])
        first = before = 0
        while first < len(rows):
            end = min(int(np.searchsorted(ends, before + RECORD_BATCH_BYTES)) + 1, first + GROUP_ENTRIES, len(rows))
            chosen = rows[first:end]
            offsets = np.append(0, ends[first:end] - before).astype(np.int32)
            joined = b"".join(self._pieces(chosen))
            payloads = pa.BinaryArray.from_buffers(
                pa.binary(), end - first, [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
            )
            yield StoredEntries(self._ledger_ids[chosen], self._entry_ids[chosen], payloads)
            first, before = end, int(ends[end - 1])

    def _pieces(self, rows: Int64s) -> Iterator[memoryview]:
        """Yield the payloads of entries, those that are adjacent in a frame as one piece."""
        frames, starts, ends = self._frames[rows], self._starts[rows], self._ends[rows]
        goes_on = (frames[1:] == frames[:-1]) & (starts[1:] == ends[:-1])
        begins = np.flatnonzero(np.append(True, ~goes_on))
        last = np.append(begins[1:], len(rows)) - 1
        for frame, start, end in zip(
            frames[begins].tolist(), starts[begins].tolist(), ends[last].tolist(), strict=True
        ):
            yield self._payloads[frame][start:end]


def ledgers_in(frame: Frame) -> list[LedgerId]:
    """Return the ledgers that have entries in a frame."""
    if frame.header.kind is not FrameKind.ENTRIES:
        return []
    ids: list[LedgerId] = np.frombuffer(frame.directory, RUN)["ledger_id"].tolist()
    return ids


def entries_of(frames: Sequence[Frame]) -> JournalEntries | None:
    """Return the entries of consecutive frames; None if there are none.

    Raises:
        CorruptJournalError: a frame is malformed, or a ledger's entries have a gap.
    """
    frames = [frame for frame in frames if frame.header.kind is FrameKind.ENTRIES]
    batches = [frame.record_batch() for frame in frames]
    if not batches:
        return None

    def joined(name: str) -> Int64s:
        return np.concatenate([batch.column(name).view(pa.int64()).to_numpy() for batch in batches])

    ledger_ids, entry_ids, taken_ms = joined("ledger_id"), joined("entry_id"), joined("publish_time")
    rows = np.argsort(ledger_ids, kind="stable")
    ledger_ids, entry_ids, taken_ms = ledger_ids[rows], entry_ids[rows], taken_ms[rows]
    begins = np.flatnonzero(np.diff(ledger_ids, prepend=ledger_ids[0] - 1))
    is_gap = np.diff(entry_ids, prepend=0) != 1
    is_gap[begins] = False
    if is_gap.any():
        at = int(np.flatnonzero(is_gap)[0])
        frame = frames[int(np.searchsorted(np.cumsum([len(batch) for batch in batches]), rows[at], side="right"))]
        raise CorruptJournalError(
            f"{frame.name} has entry {ledger_ids[at]}:{entry_ids[at]} where "
            f"{ledger_ids[at]}:{entry_ids[at - 1] + 1} must follow, which no broker writes: report this as a defect."
        )
    payloads = [batch.column("payload").buffers() for batch in batches]
    offsets = [
        np.frombuffer(buffer, np.int32, len(batch) + 1) for batch, (_, buffer, _) in zip(batches, payloads, strict=True)
    ]
    return JournalEntries(
        ledgers=ledger_ids[begins],
        counts=np.diff(begins, append=len(rows)),
        taken_min_ms=np.minimum.reduceat(taken_ms, begins),
        taken_max_ms=np.maximum.reduceat(taken_ms, begins),
        _ledger_ids=ledger_ids,
        _entry_ids=entry_ids,
        _frames=np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])[rows],
        _starts=np.concatenate([each[:-1] for each in offsets]).astype(np.int64)[rows],
        _ends=np.concatenate([each[1:] for each in offsets]).astype(np.int64)[rows],
        _payloads=[memoryview(data) for _, _, data in payloads],
    )
