"""Entries against a slow cutter, and slots against values that are fixed for good."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.hashing import sticky_key_hash
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.topic.entries.cutting import (
    MAX_ENTRY_BYTES,
    MAX_ENTRY_ROWS,
    MAX_MESSAGE_BYTES,
    NO_SLOT,
    RECORD_BATCH_BYTES,
    CutRows,
    cut_entries,
    row_slots,
    run_lengths,
    slots_of_entries,
)

ROW_SCHEMA = pa.schema(
    [field for field in SEGMENT_SCHEMA if field.name not in ("ledger_id", "entry_id", "batch_index")]
)
TOPIC = "persistent://public/default/x"


def rows_of(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{**row, "sequence_id": at} for at, row in enumerate(rows)], schema=ROW_SCHEMA.remove_metadata()
    )


def slot_of(row: dict[str, object]) -> int:
    key = row.get("ordering_key", row.get("key"))
    return NO_SLOT if key is None else int(sticky_key_hash(pa.array([key], pa.binary()))[0]) % 64


def size_of(row: dict[str, object]) -> int:
    properties = row.get("properties") or []
    assert isinstance(properties, list)
    parts = [row.get("key") or b"", row.get("value") or b"", *(text for pair in properties for text in pair)]
    return sum(len(part) if isinstance(part, bytes) else len(str(part).encode()) for part in parts)


def due_of(row: dict[str, object]) -> int | None:
    deliver_at = row.get("deliver_at_time")
    assert deliver_at is None or isinstance(deliver_at, int)
    return None if deliver_at is None else deliver_at // 1000


def slow_cut(rows: list[dict[str, object]]) -> list[list[int]]:
    """The rules, one row at a time: the row numbers of each entry."""
    order = sorted(range(len(rows)), key=lambda at: slot_of(rows[at]))
    entries: list[list[int]] = []
    for _, group in groupby(order, key=lambda at: (slot_of(rows[at]), due_of(rows[at]))):
        entry: list[int] = []
        size = 0
        for at in group:
            if entry and (len(entry) == MAX_ENTRY_ROWS or size + size_of(rows[at]) > MAX_ENTRY_BYTES):
                entries.append(entry)
                entry, size = [], 0
            entry.append(at)
            size += size_of(rows[at])
        entries.append(entry)
    return entries


def found_entries(cut: CutRows) -> list[list[int]]:
    cut.batch.validate(full=True)
    entries: dict[int, list[int]] = {}
    for row in cut.batch.select(["ledger_id", "entry_id", "batch_index", "sequence_id"]).to_pylist():
        assert row["ledger_id"] is None
        entry = entries.setdefault(row["entry_id"], [])
        assert row["batch_index"] == len(entry)
        entry.append(row["sequence_id"])
    return list(entries.values())


KEYS = st.none() | st.binary(max_size=3)
SIZES = st.sampled_from([0, 1, 1000, 40_000, MAX_ENTRY_BYTES, MAX_ENTRY_BYTES + 1, 200_000])
ROWS = st.lists(
    st.fixed_dictionaries(
        {"value": SIZES.map(lambda size: b"x" * size)},
        optional={
            "key": st.binary(max_size=3),
            "ordering_key": st.sampled_from([b"a", b"b"]),
            "deliver_at_time": st.sampled_from([0, 999, 1000, 1_753_500_000_000, 1_753_500_000_999, -1]),
            "properties": st.lists(st.tuples(st.just("p\u00e9"), st.text("q", max_size=3000)), max_size=2),
        },
    ),
    max_size=25,
)


@settings(max_examples=100)
@given(ROWS, st.integers(0, 3))
def test_entries_equal_the_slow_cutters(rows: list[dict[str, object]], skip: int) -> None:
    cut = cut_entries(rows_of(rows).slice(skip), 7, TOPIC)
    rows = rows[skip:]
    expected = [[at + skip for at in entry] for entry in slow_cut(rows)]
    assert found_entries(cut) == expected
    assert cut.batch.column("entry_id").to_pylist()[:1] == [7] * bool(rows)
    assert cut.entry_rows.tolist() == [len(entry) for entry in expected]
    assert cut.entry_bytes.tolist() == [sum(size_of(rows[at - skip]) for at in entry) for entry in expected]
    assert cut.batch.schema.equals(SEGMENT_SCHEMA, check_metadata=True)


def test_small_rows_are_cut_by_count() -> None:
    cut = cut_entries(rows_of([{"value": b"v"}] * 2500), 0, TOPIC)
    assert cut.entry_rows.tolist() == [1000, 1000, 500]
    assert cut.bytes == 2500


def test_rows_without_keys_are_not_copied() -> None:
    rows = rows_of([{"value": b"v" * 100}] * 5000).slice(17)
    cut = cut_entries(rows, 0, TOPIC)
    assert cut.batch.column("value").buffers()[2].address == rows.column("value").buffers()[2].address
    assert cut.batch.column("value").offset == 17


def test_rows_in_the_order_of_their_slots_are_not_copied_again() -> None:
    rows = rows_of([{"key": b"%d" % (at % 100), "value": b"v"} for at in range(3000)])
    slots = row_slots(rows)
    assert slots is not None
    ordered = rows.take(pa.array(np.argsort(slots, kind="stable")))
    cut = cut_entries(ordered, 0, TOPIC)
    assert cut.batch.column("value").buffers()[2].address == ordered.column("value").buffers()[2].address


def test_record_batches_have_complete_entries() -> None:
    cut = cut_entries(rows_of([{"value": b"v" * 1000, "key": b"%d" % (at % 7)} for at in range(10_000)]), 3, TOPIC)
    pieces = cut.record_batches()
    assert pa.Table.from_batches([batch for batch, _ in pieces]).equals(pa.Table.from_batches([cut.batch]))
    next_entry = 3
    for batch, entries in pieces:
        assert sorted(set(batch.column("entry_id").to_pylist())) == list(range(next_entry, next_entry + entries))
        next_entry += entries
        assert batch.num_rows * 1001 <= 1.2 * RECORD_BATCH_BYTES
    assert len(pieces) == 3
    assert cut_entries(rows_of([]), 0, TOPIC).record_batches() == []


def test_a_row_above_the_largest_message_is_refused_by_topic_and_size() -> None:
    fitting = {"key": b"k" * 24, "value": b"v" * (MAX_MESSAGE_BYTES - 24)}
    assert cut_entries(rows_of([fitting]), 0, TOPIC).entry_rows.tolist() == [1]
    with pytest.raises(InvalidArgumentError, match=f"{TOPIC}.*5242881 bytes.*5242880"):
        cut_entries(rows_of([{"value": b""}, {**fitting, "properties": [("p", "")]}]), 0, TOPIC)


def test_slots_of_rows() -> None:
    rows: list[dict[str, object]] = [{"key": b"key"}, {}, {"key": b"x", "ordering_key": b"key"}, {"key": b""}]
    slots = row_slots(rows_of(rows))
    assert slots is not None
    assert slots.tolist() == [1654417988 % 64, NO_SLOT, 1654417988 % 64, 0]
    assert row_slots(rows_of([{}, {"value": b"v"}])) is None


def test_shared_slots_are_fixed_for_good() -> None:
    first = slots_of_entries(LedgerId(1), 0, 96)
    assert first[::16].tolist() == SHARED_SLOTS_OF_LEDGER_1
    assert (first.reshape(-1, 16) == first[::16, None]).all()
    assert slots_of_entries(LedgerId(1), 13, 40).tolist() == first[13:53].tolist()
    assert len(slots_of_entries(LedgerId(1), 5, 0)) == 0
    spread = np.bincount(slots_of_entries(LedgerId(77), 0, 64 * 16 * 100), minlength=64)
    assert spread.min() > 0.6 * spread.mean()


SHARED_SLOTS_OF_LEDGER_1 = [27, 38, 16, 28, 39, 17]


@given(st.lists(st.integers(1, 3), max_size=50))
def test_run_lengths(rows: list[int]) -> None:
    assert run_lengths(np.array(rows, np.int64)) == tuple((len(list(group)), key) for key, group in groupby(rows))
