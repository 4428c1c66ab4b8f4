"""Splitting a read over tasks: everything exactly once, in order, in tasks of about equal size."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.datasource.scan import (
    MAX_SPLIT_BYTES,
    MESSAGE_COST_BYTES,
    MIN_SPLIT_BYTES,
    ScanPartition,
    ScanPiece,
    split,
)
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

FILE = FileRecord(file_id="f", write_id="w", copies=(0,), length=1, batches=1_000)


def segment(ledger: int, batches: Sequence[Sequence[int]], row_bytes: int = 100, first_entry: int = 0) -> SegmentRecord:
    """A segment whose batches have entries with these numbers of messages."""
    rows = [count for batch in batches for count in batch]
    return SegmentRecord(
        topic_id="t",
        ledger_id=ledger,
        first_entry=first_entry,
        entries=len(rows),
        rows=sum(rows),
        bytes=sum(rows) * row_bytes,
        file_id="f",
        first_batch=0,
        batch_entries=tuple(len(batch) for batch in batches),
        entry_rows=tuple((1, count) for count in rows),
        entry_offset=first_entry,
        publish_min_ms=0,
        publish_max_ms=0,
    )


def piece(record: SegmentRecord, first: int | None = None, end: int | None = None) -> ScanPiece:
    low, high = record.first_entry, record.first_entry + record.entries
    return ScanPiece(SegmentSlice("x", "t", -1, record, FILE, low if first is None else first, end or high))


def entries(partitions: Sequence[ScanPartition]) -> list[tuple[int, int]]:
    slices = [found.slice for partition in partitions for found in partition.pieces]
    return [(one.segment.ledger_id, entry) for one in slices for entry in range(one.first, one.end)]


def expected(pieces: Sequence[ScanPiece]) -> list[tuple[int, int]]:
    return [(one.slice.segment.ledger_id, entry) for one in pieces for entry in range(one.slice.first, one.slice.end)]


def rows(partition: ScanPartition) -> int:
    return sum(found.slice.rows for found in partition.pieces)


@st.composite
def many_pieces(draw: st.DrawFn) -> list[ScanPiece]:
    found = []
    for ledger in range(draw(st.integers(1, 4))):
        batches = draw(st.lists(st.lists(st.integers(1, 1_000), min_size=1, max_size=5), min_size=1, max_size=6))
        record = segment(ledger, batches, draw(st.sampled_from([0, 1, 1_000, 100_000])), draw(st.integers(0, 50)))
        first = draw(st.integers(record.first_entry, record.first_entry + record.entries - 1))
        end = draw(st.integers(first + 1, record.first_entry + record.entries))
        found.append(piece(record, first, end))
    return found


@settings(max_examples=300)
@given(many_pieces(), st.none() | st.integers(1, 40), st.none() | st.integers(1, 3_000))
def test_every_entry_is_in_one_task_in_order(
    pieces: list[ScanPiece], min_partitions: int | None, max_records: int | None
) -> None:
    made = split(pieces, {}, min_partitions, max_records)
    assert entries(made) == expected(pieces)
    assert all(partition.pieces for partition in made)
    batches = sum(len(one.slice.batches()) for one in pieces)
    assert len(made) >= min(min_partitions or 1, batches)
    if max_records is not None:
        for partition in made:
            one_entry = len(partition.pieces) == 1 and len(entries([partition])) == 1
            assert rows(partition) <= max_records or one_entry
    assert entries(pickle.loads(pickle.dumps(made))) == expected(pieces)


def test_nothing_to_read_makes_no_task() -> None:
    assert split([], {}, None, None) == split([], {}, 7, 5) == []


def test_one_big_topic_uses_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    whole = piece(segment(1, [[100] * 10] * 16, row_bytes=1_000))
    made = split([whole], {}, None, None)
    assert [rows(partition) for partition in made] == [4_000] * 4


def test_a_small_topic_is_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    below = MIN_SPLIT_BYTES // (100 + MESSAGE_COST_BYTES) // 4
    assert len(split([piece(segment(1, [[below]] * 4))], {}, None, None)) == 1


def test_tasks_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    pieces = [piece(segment(ledger, [[1_000] * 2] * 128, row_bytes=1_000)) for ledger in range(4)]
    made = split(pieces, {}, None, None)
    sizes = [rows(partition) * (1_000 + MESSAGE_COST_BYTES) for partition in made]
    assert max(sizes) <= 1.1 * MAX_SPLIT_BYTES
    assert min(sizes) >= 0.5 * MAX_SPLIT_BYTES


def test_tasks_come_in_rounds_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    batches = 5 * MAX_SPLIT_BYTES // (1_000 * (1_000 + MESSAGE_COST_BYTES))
    made = split([piece(segment(1, [[1_000]] * batches, row_bytes=1_000))], {}, None, None)
    assert len(made) == 8


def test_messages_without_bytes_are_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    tombstones = piece(segment(1, [[1_000] * 20] * 10, row_bytes=0))
    assert len(split([tombstones], {}, None, None)) == 2


def test_many_small_segments_are_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    pieces = [piece(segment(ledger, [[12]])) for ledger in range(5_000)]
    assert len(split(pieces, {}, None, None)) == 2


def test_a_cut_within_a_batch_is_made_between_entries() -> None:
    whole = piece(segment(1, [[10, 10, 10, 25, 3]]))
    made = split([whole], {}, None, 20)
    assert [entries([partition]) for partition in made] == [[(1, 0), (1, 1)], [(1, 2)], [(1, 3)], [(1, 4)]]
