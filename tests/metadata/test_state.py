from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.records import LedgerRecord, Record, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import ChangedChains, State, View, encode

AT = datetime(2026, 1, 1, tzinfo=UTC)


def ledger(topic: str, number: int, closed: bool = False) -> LedgerRecord:
    return LedgerRecord(topic_id=topic, ledger_id=number, closed=closed, created_at=AT)


def topic(name: str, topic_id: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id, created_at=AT)


def segment(topic_id: str, first: int) -> SegmentRecord:
    return SegmentRecord(
        topic_id=topic_id,
        ledger_id=3,
        first_entry=first,
        entries=10,
        rows=20,
        bytes=300,
        file_id="f-1",
        first_batch=1,
        batch_entries=(4, 6),
        entry_rows=((10, 2),),
        entry_offset=first,
        publish_min_ms=1,
        publish_max_ms=2,
    )


@dataclass(frozen=True)
class Put:
    record: Record
    deleted: bool


RECORDS = st.one_of(
    st.builds(ledger, st.sampled_from("xyz"), st.integers(1, 5), st.booleans()),
    # One name may come back with another topic id: it moves to another index.
    st.builds(topic, st.sampled_from(["p", "q"]), st.sampled_from("xyz")),
)
PUTS = st.lists(st.builds(Put, RECORDS, st.booleans()), max_size=40)


def _tables(puts: Sequence[Put]) -> list[pa.Table]:
    return [encode([(put.record, put.deleted)], seq, f"{seq:032d}", ["k"]) for seq, put in enumerate(puts, 1)]


def _check(view: View, puts: Sequence[Put]) -> None:
    model: dict[tuple[str, str], Put] = {(put.record.kind, put.record.record_id): put for put in puts}
    for cls in (LedgerRecord, TopicRecord):
        live = {
            record_id: put.record for (kind, record_id), put in model.items() if kind == cls.kind and not put.deleted
        }
        assert view.all(cls) == [live[record_id] for record_id in sorted(live)]
        for (kind, record_id), put in model.items():
            if kind == cls.kind:
                assert view.get(cls, record_id) == live.get(record_id)
                assert view.last(cls, record_id) == put.record
        for topic_id in "xyz":
            of_topic = [live[record_id] for record_id in sorted(live) if live[record_id].topic_id == topic_id]
            assert view.all(cls, topic_id) == of_topic
            assert view.newest(cls, topic_id) == (of_topic[-1] if of_topic else None)


@given(puts=PUTS, order=st.randoms(), cut=st.integers(0, 40))
def test_the_view_equals_a_dict_for_rows_in_any_order_and_portions(puts: list[Put], order: object, cut: int) -> None:
    tables = _tables(puts)
    shuffled = [*tables, *tables[: len(tables) // 2]]
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    state = State()
    if shuffled[:cut]:
        state.apply(pa.concat_tables(shuffled[:cut]))
    for table in shuffled[cut:]:
        state.apply(table)
    _check(View(state, 1), puts)


@given(before=PUTS, after=PUTS)
def test_a_fork_leaves_its_origin_unchanged(before: list[Put], after: list[Put]) -> None:
    state = State()
    tables = _tables([*before, *after])
    for table in tables[: len(before)]:
        state.apply(table)
    fork = state.fork()
    for table in tables[len(before) :]:
        fork.apply(table)
    _check(View(fork, 2), [*before, *after])
    _check(View(state, 1), before)


def test_since_starts_at_the_record_that_holds_the_place() -> None:
    state = State()
    state.apply(encode([(segment("x", first), False) for first in (0, 10, 30)], 1, "t", ["k"]))
    view = View(state, 1)

    def firsts(record_id: str) -> list[int]:
        return [record.first_entry for record in view.since(SegmentRecord, "x", record_id)]

    assert firsts(segment("x", 10).record_id) == [10, 30]
    assert firsts(segment("x", 15).record_id) == [10, 30]
    assert firsts(segment("x", 99).record_id) == [30]
    assert firsts("") == [0, 10, 30]
    assert list(view.since(SegmentRecord, "other", "")) == []


def test_every_field_is_read_back_also_unknown_ones() -> None:
    record = SegmentRecord(**segment("x", 5).model_dump(), from_later={"nested": [1, None, "ü"]})
    state = State()
    state.apply(encode([(record, False)], 1, "t", ["k"]))
    back = View(state, 1).get(SegmentRecord, record.record_id)
    assert back == record
    assert back is not None
    assert back.model_dump()["from_later"] == {"nested": [1, None, "ü"]}


def test_all_readers_choose_the_same_of_two_rows_with_one_seq() -> None:
    rows = [encode([(ledger("x", 1, closed), False)], 5, token, ["k"]) for token, closed in (("a", False), ("b", True))]
    for order in (rows, rows[::-1]):
        state = State()
        for row in order:
            state.apply(row)
        found = View(state, 1).get(LedgerRecord, ledger("x", 1).record_id)
        assert found is not None
        assert found.closed


def test_typed_columns_have_the_fields_that_sql_needs() -> None:
    row = encode([(segment("x", 5), True)], 7, "tok", ["b", "a"]).to_pylist()[0]
    assert {name: row[name] for name in ("kind", "seq", "cas_keys", "deleted", "topic_id", "ledger_id", "rows")} == {
        "kind": "segment",
        "seq": 7,
        "cas_keys": ["a", "b"],
        "deleted": True,
        "topic_id": "x",
        "ledger_id": 3,
        "rows": 20,
    }


def test_a_grouped_commit_names_its_keys_once() -> None:
    keys = [f"topic/{number}" for number in range(200)]
    rows = encode([(segment("x", number), False) for number in range(200)], 7, "tok", keys).to_pylist()
    assert [row["cas_keys"] for row in rows] == [sorted(keys)] + [None] * 199
    assert {row["token"] for row in rows} == {"tok"}


def test_topics_whose_chains_changed_are_known_by_revision() -> None:
    state = State()
    state.apply(encode([(ledger("x", 1), False), (segment("y", 0), False)], 1, "1", ["k"]))
    first = state.revision
    assert state.chains_since(first) == ChangedChains(frozenset(), frozenset())
    state.apply(encode([(segment("x", 10), False), (topic("p", "z"), False)], 2, "2", ["k"]))
    state = state.fork()
    state.apply(encode([(segment("y", 0), True)], 3, "3", ["k"]))
    state.apply(encode([(ledger("x", 1), False)], 1, "1", ["k"]))  # known already
    assert state.chains_since(first) == ChangedChains(shaped=frozenset("y"), grown=frozenset("x"))
    assert state.chains_since(first + 1) == ChangedChains(shaped=frozenset("y"), grown=frozenset())
    replayed = State(after=state)
    replayed.apply(encode([(ledger("x", 1), False)], 1, "1", ["k"]))
    assert replayed.chains_since(state.revision) is None, "what was dropped for good is in no row"
    assert replayed.revision > state.revision
