"""Serialized ids of columns against the ids made one at a time, and against bytes seen from an official client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId
from pulsar_on_spark.model.message_ids import serialized_message_ids

EDGES = [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**31, 2**35 - 1, 2**56, 2**63 - 1]


def test_bytes_of_the_official_python_client() -> None:
    entries, batches = np.array([345, 345]), np.array([-1, 7], np.int32)
    assert serialized_message_ids(LedgerId(12), entries, -1, batches)[0].as_py() == bytes.fromhex("080c10d902")
    assert serialized_message_ids(LedgerId(12), entries, 3, batches)[1].as_py() == bytes.fromhex("080c10d90218032007")


@settings(max_examples=150)
@given(
    st.integers(1, 2**63 - 1),
    st.lists(st.tuples(st.sampled_from(EDGES) | st.integers(0, 400), st.integers(-1, 400)), max_size=40),
    st.sampled_from([-1, 0, 127, 128, 40_000]),
)
def test_each_row_equals_message_id_serialize(ledger: int, rows: list[tuple[int, int]], partition: int) -> None:
    entries = np.array([entry for entry, _ in rows], np.int64)
    batches = np.array([batch for _, batch in rows], np.int32)
    made = serialized_message_ids(LedgerId(ledger), entries, partition, batches)
    made.validate(full=True)
    assert made.to_pylist() == [
        MessageId(LedgerId(ledger), EntryId(entry), partition, batch).serialize() for entry, batch in rows
    ]


@pytest.mark.parametrize("rows_an_entry", [1, 129, 1000])
def test_more_rows_than_fit_one_table(rows_an_entry: int) -> None:
    row = np.arange(20_000)
    made = serialized_message_ids(LedgerId(9), row // rows_an_entry, 0, (row % rows_an_entry).astype(np.int32))
    some = [0, 1, 128, 8191, 8192, 8193, 16_384, 19_999]
    assert [made[at].as_py() for at in some] == [
        MessageId(LedgerId(9), EntryId(at // rows_an_entry), 0, at % rows_an_entry).serialize() for at in some
    ]
