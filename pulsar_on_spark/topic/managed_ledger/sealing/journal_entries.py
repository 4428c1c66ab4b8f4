"""The entries of journal frames as columns, sorted by ledger, so that a sealer can decode many entries in one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pulsar_on_spark.ledger.journal.frames import RUN, Frame
from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.protocol.field_walk import Bytes, Int64s
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES
from pulsar_on_spark.topic.entries.rows import GROUP_ENTRIES
from pulsar_on_spark.topic.entries.stored import StoredEntries

GROUP_BYTES = 12 << 20
"""Approximate limit of a group that is not copied. A group costs 1 ms beside the work for its messages."""


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
    _windows: Sequence[memoryview]
    """The bytes that were read with each frame; frames that were read at once share them."""
    _frames: Int64s
    """Index of each entry's frame."""
    _starts: Int64s
    """Start of each entry in the window of its frame."""
    _ends: Int64s

    def groups(self, wanted: Collection[LedgerId]) -> Iterator[StoredEntries]:
        """Yield the entries of some ledgers, in groups of at most `GROUP_ENTRIES`.

        Entries that are in order in one window, as those of a single ledger are, stay there: a chunk of them is one
        group. Others are copied together, `RECORD_BATCH_BYTES` at a time, so that they stay in the CPU's cache.
        """
        rows = np.arange(len(self._starts))
        if not set(self.ledgers.tolist()).issubset(wanted):
            rows = np.flatnonzero(np.isin(self._ledger_ids, list(wanted)))
        ends = np.cumsum(self._ends[rows] - self._starts[rows])
        is_in_order = self._is_in_order(rows)
        size_bytes = GROUP_BYTES if is_in_order else RECORD_BATCH_BYTES
        first = before = 0
        while first < len(rows):
            end = min(int(np.searchsorted(ends, before + size_bytes)) + 1, first + GROUP_ENTRIES, len(rows))
            chosen = rows[first:end]
            placed = self._in_window(chosen) if is_in_order else self._copied(chosen)
            yield StoredEntries(self._ledger_ids[chosen], self._entry_ids[chosen], *placed)
            first, before = end, int(ends[end - 1])

    def _is_in_order(self, rows: Int64s) -> bool:
        frames, starts, ends = self._frames[rows], self._starts[rows], self._ends[rows]
        windows = {id(self._windows[frame]) for frame in np.unique(frames).tolist()}
        return len(windows) == 1 and bool((starts[1:] >= ends[:-1]).all())

    def _in_window(self, rows: Int64s) -> tuple[Bytes, Int64s, Int64s]:
        """Return the window that has these entries, with the start and the end of each."""
        window = self._windows[self._frames[rows[0]]]
        return np.frombuffer(window, np.uint8), self._starts[rows], self._ends[rows]

    def _copied(self, rows: Int64s) -> tuple[Bytes, Int64s, Int64s]:
        """Return these entries one after the other, with the start and the end of each."""
        bounds = np.append(0, np.cumsum(self._ends[rows] - self._starts[rows]))
        return np.frombuffer(b"".join(self._pieces(rows)), np.uint8), bounds[:-1], bounds[1:]

    def _pieces(self, rows: Int64s) -> Iterator[memoryview]:
        """Yield the bytes of entries, those that are adjacent in a frame as one piece."""
        frames, starts, ends = self._frames[rows], self._starts[rows], self._ends[rows]
        goes_on = (frames[1:] == frames[:-1]) & (starts[1:] == ends[:-1])
        begins = np.flatnonzero(np.append(True, ~goes_on))
        last = np.append(begins[1:], len(rows)) - 1
        for frame, start, end in zip(
            frames[begins].tolist(), starts[begins].tolist(), ends[last].tolist(), strict=True
        ):
            yield self._windows[frame][start:end]


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
    if not frames:
        return None
    columns = [frame.entry_columns() for frame in frames]
    ledger_ids = np.concatenate([each.ledger_ids for each in columns])
    entry_ids = np.concatenate([each.entry_ids for each in columns])
    taken_ms = np.concatenate([each.publish_times for each in columns])
    bounds = [each.offsets + frame.payloads_at for each, frame in zip(columns, frames, strict=True)]
    rows = np.argsort(ledger_ids, kind="stable")
    ledger_ids, entry_ids, taken_ms = ledger_ids[rows], entry_ids[rows], taken_ms[rows]
    begins = np.flatnonzero(np.diff(ledger_ids, prepend=ledger_ids[0] - 1))
    is_gap = np.diff(entry_ids, prepend=0) != 1
    is_gap[begins] = False
    if is_gap.any():
        at = int(np.flatnonzero(is_gap)[0])
        frame_ends = np.cumsum([len(each.entry_ids) for each in columns])
        frame = frames[int(np.searchsorted(frame_ends, rows[at], side="right"))]
        raise CorruptJournalError(
            f"{frame.name} has entry {ledger_ids[at]}:{entry_ids[at]} where "
            f"{ledger_ids[at]}:{entry_ids[at - 1] + 1} must follow, which no broker writes: report this as a defect."
        )
    return JournalEntries(
        ledgers=ledger_ids[begins],
        counts=np.diff(begins, append=len(rows)),
        taken_min_ms=np.minimum.reduceat(taken_ms, begins),
        taken_max_ms=np.maximum.reduceat(taken_ms, begins),
        _ledger_ids=ledger_ids,
        _entry_ids=entry_ids,
        _windows=[frame.window for frame in frames],
        _frames=np.repeat(np.arange(len(frames)), [len(each.entry_ids) for each in columns])[rows],
        _starts=np.concatenate([each[:-1] for each in bounds]).astype(np.int64)[rows],
        _ends=np.concatenate([each[1:] for each in bounds]).astype(np.int64)[rows],
    )
