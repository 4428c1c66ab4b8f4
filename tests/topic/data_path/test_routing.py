"""Routing of rows to partitions: no row is lost, doubled or put out of order on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.topic.data_path.routing import RUN_ROWS, HashingScheme, RoundRobin, route, split_rows

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "keys.json").read_text("utf-8"))["vectors"]
JAVA = HashingScheme.JAVA_STRING_HASH


@pytest.mark.parametrize("scheme", HashingScheme)
def test_keys_go_where_the_java_client_sends_them(scheme: HashingScheme) -> None:
    keys = pa.array([bytes.fromhex(vector["hex"]) * vector["times"] for vector in GOLDEN], pa.binary())
    flags = pa.array([vector["b64"] for vector in GOLDEN])
    for at, partitions in enumerate((1, 3, 8, 1000)):
        chosen, state = route(keys, len(keys), partitions, scheme, RoundRobin(), flags)
        assert chosen.tolist() == [vector[f"partition_{scheme.value}"][at] for vector in GOLDEN]
        assert state == RoundRobin()


def test_small_batches_spread_and_large_ones_stay_in_runs() -> None:
    small, _ = route(None, 8, 4, JAVA, RoundRobin())
    assert small.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    large, state = route(None, 10_500, 4, JAVA, RoundRobin(partition=2))
    assert large[:RUN_ROWS].tolist() == [2] * RUN_ROWS
    assert np.flatnonzero(np.diff(large)).tolist() == [RUN_ROWS * turn - 1 for turn in range(1, 11)]
    more, _ = route(None, 4000, 4, JAVA, state)
    assert np.flatnonzero(np.diff(more))[0] == 499, "a run continues in the next batch"
    assert more[0] == large[-1]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(2, 7), st.integers(0, 6))
def test_single_rows_still_reach_every_partition_in_turn(sizes: list[int], partitions: int, start: int) -> None:
    state, counts = RoundRobin(start % partitions), np.zeros(partitions, np.int64)
    for size in sizes:
        chosen, state = route(None, size, partitions, JAVA, state)
        counts += np.bincount(chosen, minlength=partitions)
    assert counts.sum() == sum(sizes)
    largest_run = -(-max(sizes, default=0) // partitions)
    assert counts.max() - counts.min() <= 2 * largest_run * max(1, len(sizes))
    ones, _ = route(pa.nulls(partitions, pa.binary()), partitions, partitions, JAVA, RoundRobin())
    assert sorted(ones.tolist()) == list(range(partitions))


def test_rows_without_a_key_between_keyed_ones_take_turns() -> None:
    keys = pa.array([None, b"key", None, b"key", None], pa.binary())
    chosen, state = route(keys, 5, 3, JAVA, RoundRobin(1))
    assert chosen.tolist() == [1, 106079 % 3, 2, 106079 % 3, 0]
    assert state == RoundRobin(1, 0)


@given(st.lists(st.integers(0, 5), max_size=200))
def test_split_keeps_every_row_in_order(rows: list[int]) -> None:
    partitions = np.array(rows, np.int32)
    batch = pa.record_batch({"at": pa.array(range(len(rows)), pa.int64())})
    found: dict[int, list[int]] = {}
    for partition, part in split_rows(batch, partitions):
        found.setdefault(partition, []).extend(part.column("at").to_pylist())
    expected: dict[int, list[int]] = {}
    for at, partition in enumerate(rows):
        expected.setdefault(partition, []).append(at)
    assert found == expected


def test_runs_are_handed_on_without_a_copy() -> None:
    batch = pa.record_batch({"value": pa.array([b"x" * 10] * 4000)})
    partitions, _ = route(None, 4000, 3, JAVA, RoundRobin())
    parts = split_rows(batch, partitions)
    assert [partition for partition, _ in parts] == [0, 1, 2, 0]
    address = batch.column(0).buffers()[2].address
    assert {part.column(0).buffers()[2].address for _, part in parts} == {address}
