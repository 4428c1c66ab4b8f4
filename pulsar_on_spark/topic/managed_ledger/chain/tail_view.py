"""A reader's view: the main table at one version, and acknowledged entries in journals that are not sealed yet.

Entries in a journal appear as segments of their ledger, after its sealed segments, so that a planner treats both alike.
These unsealed segments are in no table and name no file. `data_path.tail` makes such views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import TypeVar, cast

from typing_extensions import override

from pulsar_on_spark.ledger.journal.frame_reader import JournalPlace
from pulsar_on_spark.metadata.records import Record, SegmentRecord
from pulsar_on_spark.metadata.state import View

R = TypeVar("R", bound=Record)


class UnsealedSegment(SegmentRecord):
    """Acknowledged entries of a ledger that are only in the journal. Each of its batches has the entries of one frame.

    `rows` and `entry_rows` are the broker's counts, `bytes` is the size of the entries as received, and the publish
    times are unknown.
    """

    frames: JournalPlace


def _id_of(record: Record) -> str:
    return record.record_id


@dataclass(frozen=True, slots=True)
class TopicTail:
    """The part of a topic that is not sealed.

    Attributes:
        segments: The unsealed segments in the order of entries; none overlaps a sealed segment.
        ends: By ledger, the number of entries of ledgers without a close row whose log a recovery closed.
    """

    segments: tuple[UnsealedSegment, ...] = ()
    ends: Mapping[int, int] = field(default_factory=dict)


_NO_TAIL = TopicTail()


@dataclass(frozen=True, eq=False, slots=True)
class TailView(View):
    """A view of the main table with additional, unsealed segments. For readers only: commits need a plain view."""

    base: View
    tails: Mapping[str, TopicTail]
    hidden: frozenset[str] = frozenset()
    """Ids of topics with acknowledged entries in journals that are not read on this host.

    Readers on this host get these entries once they are sealed.
    """

    @classmethod
    def over(cls, base: View, tails: Mapping[str, TopicTail], hidden: frozenset[str] = frozenset()) -> TailView:
        """Make a view of `base` with these unsealed parts of topics, by topic id."""
        return cls(base.state, base.version, base, tails, hidden)

    def end_by_force(self, topic_id: str, ledger_id: int) -> int | None:
        """Return the number of entries of a ledger whose log a recovery closed; None if it is unknown."""
        return self.tails.get(topic_id, _NO_TAIL).ends.get(ledger_id)

    @override
    def all(self, cls: type[R], topic_id: str | None = None) -> list[R]:
        """Return the base view's records of a kind; with `topic_id`, only this topic's, unsealed segments included.

        A `topic_id` of None returns the base view's records of all topics.
        """
        return self._merged(cls, topic_id, self.base.all(cls, topic_id))

    @override
    def newest(self, cls: type[R], topic_id: str) -> R | None:
        return self._last(cls, topic_id, self.base.newest(cls, topic_id), None)

    @override
    def before(self, cls: type[R], topic_id: str, record_id: str) -> R | None:
        return self._last(cls, topic_id, self.base.before(cls, topic_id, record_id), record_id)

    @override
    def since(self, cls: type[R], topic_id: str, record_id: str) -> Iterator[R]:
        sealed, unsealed = self.base.since(cls, topic_id, record_id), self._unsealed(cls, topic_id)
        last: R | None = None  # the last record at or before the id
        for record in merge(sealed, unsealed, key=_id_of):
            if record.record_id > record_id:
                if last is not None:
                    yield last
                    last = None
                yield record
            else:
                last = record
        if last is not None:
            yield last

    def _unsealed(self, cls: type[R], topic_id: str | None) -> tuple[R, ...]:
        tail = self.tails.get(topic_id) if cls is SegmentRecord and topic_id is not None else None
        return () if tail is None else cast("tuple[R, ...]", tail.segments)

    def _merged(self, cls: type[R], topic_id: str | None, sealed: list[R]) -> list[R]:
        unsealed = self._unsealed(cls, topic_id)
        return sorted((*sealed, *unsealed), key=lambda record: record.record_id) if unsealed else sealed

    def _last(self, cls: type[R], topic_id: str, sealed: R | None, below: str | None) -> R | None:
        """Return the later one of a sealed segment and the last unsealed segment; None if there is neither.

        With `below`, only unsealed segments with a lower id count.
        """
        for record in reversed(self._unsealed(cls, topic_id)):
            if below is None or record.record_id < below:
                return record if sealed is None or sealed.record_id < record.record_id else sealed
        return sealed
