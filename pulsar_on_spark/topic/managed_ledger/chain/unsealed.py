"""Entries in frames of a journal, shown as a segment of their ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_on_spark.ledger.journal.files import ScanPosition
from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.ledger.journal.log import Copy, Fragment, FrameNumber
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment

UNKNOWN_PUBLISH_MS = (0, 2**62)
"""Publish times that make a reader look at the messages themselves."""


class IndexedRun(NamedTuple):
    """The entries of one ledger in one frame: [first, end).

    `entry_rows` is the run-length list of messages of each entry, as the broker counted them; `copy` is the file that
    was looked at, and `position` where the frame is in it.
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
    """The segment of runs that follow each other in one fragment, from entry `first` of the first run on."""
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
    """Run lengths of all runs from entry `first` on, equal neighbours together."""
    joined: list[tuple[int, int]] = []
    skipped = first - runs[0].first
    for run in runs:
        for count, rows in run.entry_rows:
            taken = count - min(skipped, count)
            skipped -= count - taken
            if taken and joined and joined[-1][1] == rows:
                joined[-1] = (joined[-1][0] + taken, rows)
            elif taken:
                joined.append((taken, rows))
    return tuple(joined)
