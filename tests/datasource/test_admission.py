from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.datasource.admission import admit, count_passed_over
from pulsar_on_spark.datasource.stream_plan import Backlog, Budget
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

FILE = FileRecord(file_id="f", write_id="w", copies=(0,), length=1, batches=1)


def at(entry: int) -> Position:
    return Position(LedgerId(1), EntryId(entry))


@dataclass
class Topic:
    """A topic of one ledger whose entries have these numbers of messages, of ten bytes each."""

    name: str
    entries: list[int]
    read: int = 0

    def backlog(self) -> Backlog:
        part = TopicPart(self.name, self.name, -1)
        segment = SegmentRecord(
            topic_id=self.name, ledger_id=1, first_entry=0, entries=len(self.entries), rows=sum(self.entries),
            bytes=10 * sum(self.entries), file_id="f", first_batch=0, batch_entries=(len(self.entries),),
            entry_rows=tuple((1, rows) for rows in self.entries), entry_offset=0, publish_min_ms=0, publish_max_ms=0,
        )  # fmt: skip
        end = len(self.entries)
        slices = (SegmentSlice(self.name, self.name, -1, segment, FILE, self.read, end),) if self.read < end else ()
        return Backlog(part, at(self.read), at(end), sum(self.entries[self.read :]), slices, at(end))

    def rows(self, end: Position) -> int:
        return sum(self.entries[self.read : end.entry])


topics = st.lists(st.lists(st.integers(1, 50), max_size=12), min_size=1, max_size=6).map(
    lambda found: [Topic(f"t{number}", entries) for number, entries in enumerate(found)]
)
limits = st.one_of(st.none(), st.integers(1, 200))


@given(topics, limits, limits)
def test_a_batch_keeps_its_limits_but_for_its_first_entry_and_always_gets_on(
    found: list[Topic], rows: int | None, size: int | None
):
    ends = admit([topic.backlog() for topic in found], Budget(rows, size), {})
    taken = {topic.name: topic.rows(ends[topic.name]) for topic in found}
    assert all(ends[topic.name] >= at(0) for topic in found)
    if any(topic.entries for topic in found):
        assert sum(taken.values()) > 0
    firsts = max((topic.entries[0] for topic in found if topic.entries), default=0)
    for limit, unit in ((rows, 1), (size, 10)):
        if limit is not None:
            assert sum(taken.values()) * unit <= max(limit + len(found), firsts * unit)
    if rows is None and size is None:
        assert all(taken[topic.name] == sum(topic.entries) for topic in found)


@given(topics, st.integers(1, 60))
def test_all_messages_are_read_in_batches_and_no_topic_starves(found: list[Topic], rows: int):
    passed_over: dict[str, int] = {}
    waited = dict.fromkeys((topic.name for topic in found), 0)
    for _ in range((sum(len(topic.entries) for topic in found) + 1) * len(found)):
        waiting = [topic.backlog() for topic in found]
        if all(backlog.start == backlog.end for backlog in waiting):
            break
        ends = admit(waiting, Budget(rows, None), passed_over)
        passed_over = count_passed_over(waiting, ends, passed_over)
        for topic in found:
            moved = ends[topic.name].entry > topic.read or topic.read == len(topic.entries)
            waited[topic.name] = 0 if moved else waited[topic.name] + 1
            assert waited[topic.name] <= len(found)
            topic.read = ends[topic.name].entry
            if topic.name == "t0":  # a busy topic
                topic.entries = topic.entries if len(topic.entries) > 40 else [*topic.entries, 50]
    assert all(topic.read == len(topic.entries) for topic in found if topic.name != "t0")


def test_shares_are_proportional_to_backlogs():
    found = [Topic("large", [1] * 90), Topic("small", [1] * 10)]
    ends = admit([topic.backlog() for topic in found], Budget(20, None), {})
    assert (ends["large"], ends["small"]) == (at(18), at(2))
