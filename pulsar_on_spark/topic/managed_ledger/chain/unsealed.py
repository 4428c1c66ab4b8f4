"""Conversion of a ledger's entries in journal frames to an `UnsealedSegment`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.ledger.journal.log import Copy, Fragment, FrameNumber
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment

UNKNOWN_PUBLISH_MS = (0, 2**62)
"""Bounds of publish times (ms since 1970) so far apart that a reader must look at the messages themselves."""


class IndexedRun(NamedTuple):
    """The entries [first, end) of one ledger in one frame.

    `entry_rows` are runs (number of entries, messages in each entry), as the broker counted them. `bytes` is the size
    of the entries as received. `copy` is the file that was read, and `position` the frame's position in it.
    """

    frame: FrameNumber
    first: int
    end: int
    bytes: int
    entry_rows: tuple[tuple[int, int], ...]
    copy: Copy
    position: ScanPosition


def unsealed_segment(
    incarnation: IncarnationId,
    topic_id: str,
    ledger: int,
    first: int,
    fragment: Fragment | None,
    runs: Sequence[IndexedRun],
) -> UnsealedSegment:
    """Return an unsealed segment of adjacent runs in one fragment.

    Args:
        incarnation: The journal's incarnation.
        topic_id: The topic.
        ledger: The ledger.
        first: The first entry of the segment, which is in the first run.
        fragment: The fragment that has the runs; None to name only the file that was read as the copy.
        runs: The runs of the ledger's entries, in order.
    """
    entry_rows = _joined(runs, first)
    copies = fragment.copies if fragment is not None else (runs[0].copy,)
    return UnsealedSegment(
        topic_id=topic_id,
        ledger_id=ledger,
        first_entry=first,
        entries=runs[-1].end - first,
        rows=sum(count * rows for count, rows in entry_rows),
        bytes=sum(run.bytes for run in runs),
        file_id="",
        first_batch=0,
        batch_entries=tuple(run.end - max(run.first, first) for run in runs),
        entry_rows=entry_rows,
        entry_offset=0,
        publish_min_ms=UNKNOWN_PUBLISH_MS[0],
        publish_max_ms=UNKNOWN_PUBLISH_MS[1],
        frames=JournalPlace(incarnation, copies, tuple(run.frame for run in runs), (runs[0].copy, runs[0].position)),
    )


def _joined(runs: Sequence[IndexedRun], first: int) -> tuple[tuple[int, int], ...]:
    """Join the `entry_rows` of all runs, from entry `first` on, and combine equal neighbours."""
    joined: list[tuple[int, int]] = []
    skipped = first - runs[0].first
    for run in runs:
        for count, rows in run.entry_rows:
            remaining = count - min(skipped, count)
            skipped -= count - remaining
            if remaining and joined and joined[-1][1] == rows:
                joined[-1] = (joined[-1][0] + remaining, rows)
            elif remaining:
                joined.append((remaining, rows))
    return tuple(joined)
