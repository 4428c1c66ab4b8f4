"""Segments packed into shared batches can be read: each segment's rows, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord
from pulsar_on_spark.model.errors import CorruptSegmentError
from pulsar_on_spark.topic.data_path.reading import rows_of
from pulsar_on_spark.topic.entries import packing
from pulsar_on_spark.topic.entries.cutting import run_lengths
from pulsar_on_spark.topic.entries.packing import BatchPacker, OwnedRows, SegmentPlaces
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice, SliceBatch

FILE = FileRecord(file_id="f", write_id="w", copies=(0,), length=1, batches=99)
SIZES = st.sampled_from([1, 3, packing.SHARED_BATCH_BYTES // 3, packing.SHARED_BATCH_BYTES])
# Of each batch that comes: of each run in it, the segment, the rows of its entries, and its size.
RUNS = st.tuples(st.integers(0, 4), st.lists(st.integers(1, 4), min_size=1, max_size=4), SIZES)
BATCHES = st.lists(st.lists(RUNS, min_size=1, max_size=6), min_size=1, max_size=8)


class Packed:
    """A file in memory and the segments in it; a row is (segment, entry, row of the entry)."""

    def __init__(self) -> None:
        self.written: list[pa.RecordBatch] = []
        self.places: dict[int, SegmentPlaces] = {}
        self.entry_rows: dict[int, list[int]] = {}
        self.packer = BatchPacker(self.write)

    def write(self, batch: pa.RecordBatch) -> int:
        self.written.append(batch)
        return len(self.written) - 1

    def add(self, batch: Sequence[tuple[int, list[int], int]]) -> None:
        rows: list[tuple[int, int, int]] = []
        runs = []
        for owner, entries, size_bytes in batch:
            places, known = self.places.setdefault(owner, SegmentPlaces()), self.entry_rows.setdefault(owner, [])
            rows += [(owner, len(known) + at, row) for at, count in enumerate(entries) for row in range(count)]
            known += entries
            runs.append(OwnedRows(places, len(entries), sum(entries), size_bytes))
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        self.packer.add(pa.RecordBatch.from_arrays(columns, names=["segment", "entry", "row"]), runs)

    def slice(self, owner: int, first: int, end: int) -> SegmentSlice:
        counts = self.entry_rows[owner]
        record = SegmentRecord(
            topic_id="t",
            ledger_id=owner,
            first_entry=100,
            entries=len(counts),
            rows=sum(counts),
            bytes=1,
            file_id="f",
            entry_rows=run_lengths(pa.array(counts).to_numpy()),
            entry_offset=100,
            publish_min_ms=0,
            publish_max_ms=0,
            **self.places[owner].fields(),
        )
        return SegmentSlice("topic", "t", -1, record, FILE, 100 + first, 100 + end)


@given(batches=BATCHES, flushes=st.sets(st.integers(0, 8)), data=st.data())
def test_each_segment_has_its_rows(
    batches: list[list[tuple[int, list[int], int]]], flushes: set[int], data: st.DataObject
) -> None:
    packed = Packed()
    for number, batch in enumerate(batches):
        packed.add(batch)
        if number in flushes:
            packed.packer.flush()
    packed.packer.flush()
    for owner, counts in packed.entry_rows.items():
        first = data.draw(st.integers(0, len(counts) - 1))
        end = data.draw(st.integers(first + 1, len(counts)))
        slice_ = packed.slice(owner, first, end)
        found = [
            tuple(row.values()) for w in slice_.batches() for row in rows_of(w, packed.written[w.number]).to_pylist()
        ]
        assert found == [(owner, entry, row) for entry in range(first, end) for row in range(counts[entry])]
        assert len(found) == slice_.rows


def test_large_segments_have_batches_of_their_own() -> None:
    packed = Packed()
    large = (7, [1] * 4, packing.SHARED_BATCH_BYTES)
    for _ in range(2):
        packed.add([large])
        packed.packer.flush()
    assert packed.places[7].fields() == {"first_batch": 0, "batch_entries": (4, 4), "places": ()}
    packed.add([(1, [1], 1), large, (2, [1], 1), (3, [1], 1)])
    packed.packer.flush()
    assert [batch.num_rows for batch in packed.written] == [4, 4, 1, 4, 2]
    assert packed.places[7].fields()["places"] == ((0, 0), (1, 0), (3, 0))
    assert packed.places[3].fields() == {"first_batch": 4, "batch_entries": (1,), "places": ((4, 1),)}


def test_shared_batches_are_bounded() -> None:
    packed = Packed()
    packed.add([(number % 5, [1], packing.SHARED_BATCH_BYTES // 4) for number in range(40)])
    packed.packer.flush()
    assert {batch.num_rows for batch in packed.written} == {4}


def test_a_batch_with_fewer_rows_than_its_record_says_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3])], names=["entry"])
    with pytest.raises(CorruptSegmentError, match=r"Batch 5 of a segment file has 3 rows, .* rows up to 4"):
        rows_of(SliceBatch(5, 0, 2, (2, 4)), batch)
