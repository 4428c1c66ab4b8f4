"""Entries that claim much more than they hold: sealing stays cheap, and readers get what can be had."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES, Codec
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES
from pulsar_on_spark.topic.entries.hidden_rows import UnreadableEntry, message_rows_of
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.entries.rows import DecodedEntries, StoredEntry, decode_entries
from pulsar_on_spark.topic.entries.work_limits import GROUP_DENSE_BYTES, above_group_budget
from tests.kit.pulsar_entries import ClientMessage, batch_bomb, batch_entry, single_entry
from tests.kit.walks import both_walks  # noqa: F401

LEDGER = LedgerId(3)
ALONE_S = 10.0
"""Far above what a second's work takes on a busy machine, far below a bomb that goes off: ninety seconds."""


def decode(entries: Sequence[bytes]) -> list[DecodedEntries]:
    stored = [StoredEntry(LEDGER, EntryId(number), data) for number, data in enumerate(entries)]
    return list(decode_entries(stored))


def entry_rows(entries: Sequence[bytes]) -> list[int]:
    return [rows for decoded in decode(entries) for rows in decoded.entry_rows.tolist()]


def read(entries: Sequence[bytes], columns: Sequence[str] = ("entry_id", "value", "raw")) -> Iterator[pa.RecordBatch]:
    for decoded in decode(entries):
        yield from message_rows_of(decoded.batch.select(columns), LEDGER, pytest.fail)


@pytest.fixture(scope="module")
def sixteen_million() -> bytes:
    return batch_bomb(16_000_000)


def test_a_batch_bomb_stays_whole_and_is_returned_unchanged(sixteen_million: bytes) -> None:
    assert len(sixteen_million) < 10_000
    good = batch_entry([ClientMessage(b"good")] * 3)
    began_s = time.monotonic()
    decoded = decode([good, sixteen_million, good])
    assert time.monotonic() - began_s < ALONE_S
    assert [rows for piece in decoded for rows in piece.entry_rows.tolist()] == [3, 1, 3]
    rebuilt = [entry.data for piece in decoded for entry in rebuild_entries(piece.batch, LEDGER)]
    assert rebuilt == [good, sixteen_million, good]


@pytest.mark.parametrize(
    "lie",
    [
        {"claimed": MAX_MESSAGES_IN_ENTRY},
        {"claimed": 1},
        {"claimed": -1},
        {"claimed": 2**31 - 1},
        {"claimed": 1_000, "size": 6_000},
        {"claimed": 1_000, "size": 2**32 - 1},
        {"size": MAX_UNCOMPRESSED_BYTES + 1},
    ],
)
def test_a_bomb_that_lies_is_no_better(lie: dict[str, int]) -> None:
    began_s = time.monotonic()
    entry = batch_bomb(2_000_000, **lie)
    assert entry_rows([entry] * 5) == [1] * 5
    assert time.monotonic() - began_s < ALONE_S


def test_the_largest_batches_that_are_taken_are_taken_apart() -> None:
    entries = [
        batch_entry([ClientMessage(b"x", sequence_id=n) for n in range(MAX_MESSAGES_IN_ENTRY)], codec)
        for codec in (Codec.LZ4, Codec.ZSTD)
    ]
    assert entry_rows([*entries, batch_bomb(MAX_MESSAGES_IN_ENTRY + 1)]) == [*[MAX_MESSAGES_IN_ENTRY] * 2, 1]
    assert entry_rows([single_entry(ClientMessage(bytes(20 << 20)), Codec.ZSTD)]) == [1]


def test_default_batches_are_split_however_well_they_compress() -> None:
    thousand = batch_entry([ClientMessage(b"x")] * 1_000, Codec.ZSTD)
    assert entry_rows([thousand] * 300) == [1_000] * 300


def test_dense_entries_beyond_a_groups_budget_stay_whole_and_are_still_read() -> None:
    dense, count = batch_bomb(50_000), 12
    entries = [dense, single_entry(ClientMessage(b"between"))] * count
    rows = entry_rows(entries)
    assert rows[1::2] == [1] * count
    apart = rows[0::2].count(50_000)
    assert 0 < apart < count
    assert sorted(rows[0::2], reverse=True) == rows[0::2], "the first ones are taken apart"
    assert apart * 50_000 * 64 <= GROUP_DENSE_BYTES
    values = [value for batch in read(entries) for value in batch.column("value").to_pylist()]
    assert values == [*[b""] * 50_000, b"between"] * count


@pytest.mark.parametrize(("plain_bytes", "budgets"), [(0, 1), (RECORD_BATCH_BYTES, 1), (3 * RECORD_BATCH_BYTES, 3)])
def test_the_budget_of_a_group_grows_with_its_bytes(plain_bytes: int, budgets: int) -> None:
    dense = 8 * GROUP_DENSE_BYTES // (50_000 * 64)
    messages = np.array([1, *[50_000] * dense])
    refused = above_group_budget(messages, np.zeros(1 + dense, np.int64), np.array([plain_bytes, *[100] * dense]))
    assert not refused[0]
    assert int((~refused[1:]).sum()) == budgets * GROUP_DENSE_BYTES // (50_000 * 64)


def test_an_entry_that_was_whole_has_the_same_rows_in_any_columns() -> None:
    messages = [ClientMessage(b"x", key=b"k", properties=(("a", "b"),), sequence_id=7) for _ in range(20_000)]
    entry = batch_entry(messages, Codec.ZSTD)
    names = [name for name in SEGMENT_SCHEMA.names if name not in ("ledger_id", "entry_id")]
    (alone,) = decode([entry])
    whole = decode([entry] * 30)[-1]
    assert whole.entry_rows[-1] == 1, "it stayed whole behind the others"
    (row,) = (whole.batch.slice(whole.batch.num_rows - 1),)
    for columns in (SEGMENT_SCHEMA.names, ("entry_id", "key", "raw")):
        pieces = list(message_rows_of(row.select(columns), LEDGER, pytest.fail))
        found = pa.Table.from_batches(pieces).combine_chunks()
        wanted = [name for name in columns if name in names]
        assert found.select(wanted).equals(pa.Table.from_batches([alone.batch]).select(wanted))
        assert set(found.column("entry_id").to_pylist()) == {29}


def test_entries_that_are_not_split_have_a_reason(sixteen_million: bytes) -> None:
    told: list[UnreadableEntry] = []
    entries = [
        sixteen_million,
        batch_bomb(10, size=MAX_UNCOMPRESSED_BYTES + 1),
        batch_bomb(10, claimed=9),
        batch_bomb(10),
    ]
    for decoded in decode(entries):
        batches = message_rows_of(decoded.batch, LEDGER, told.append)
        assert sum(batch.num_rows for batch in batches) == 10
    assert [(each.entry_id, each.reason) for each in told] == [
        (0, "a batch of 16000000 messages, above the limit of 100000 for rows"),
        (1, "67108865 bytes when it is decompressed, above the limit of 67108864 for rows"),
        (2, "inconsistent with its metadata"),
    ]
