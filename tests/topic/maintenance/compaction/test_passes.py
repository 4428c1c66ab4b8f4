"""The two passes against a plain dict, over any entries that clients and Spark write, compacted again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.topic.entries.cutting import cut_entries
from pulsar_on_spark.topic.entries.rebuild import rebuild_entries
from pulsar_on_spark.topic.entries.rows import StoredEntry, decode_entries
from pulsar_on_spark.topic.maintenance.compaction.newest import COLUMNS, NewestOfKeys, Share, TooManyKeysError
from pulsar_on_spark.topic.maintenance.compaction.places import Places
from pulsar_on_spark.topic.maintenance.compaction.survivors import kept_rows
from tests.kit.messages import make_rows
from tests.kit.pulsar_entries import ClientMessage, batch_entry, read_entry, read_metadata, single_entry

Key = tuple[bytes, bool]
MESSAGES = st.builds(
    ClientMessage,
    value=st.sampled_from([None, b"", b"1", b"22", b"333"]),
    key=st.sampled_from([None, b"", b"a", b"b", b"c"]),
    key_b64=st.booleans(),
)
ENCRYPTED = MessageMetadata()
ENCRYPTED.encryption_keys.add(key="k", value=b"secret")


@dataclass(frozen=True)
class Made:
    """An entry, what a reader knows of its messages, and whether it is opaque to compaction."""

    data: bytes | None
    messages: tuple[ClientMessage, ...]
    kind: str = "plain"


def make_single(message: ClientMessage) -> Made:
    return Made(single_entry(message), (message,), "single")


def make_batch(messages: list[ClientMessage], codec: Codec) -> Made:
    return Made(batch_entry(messages, codec), tuple(messages))


def make_spark(messages: list[ClientMessage]) -> Made:
    return Made(None, tuple(replace(message, key_b64=False) for message in messages), "spark")


def make_encrypted(messages: list[ClientMessage]) -> Made:
    if len(messages) == 1:
        return Made(single_entry(messages[0], metadata=ENCRYPTED), tuple(messages), "single")
    return Made(batch_entry(messages, metadata=ENCRYPTED), tuple(messages), "opaque")


def make_marker(number: int) -> Made:
    return Made(single_entry(ClientMessage(b"x", b"a"), metadata=MessageMetadata(marker_type=number)), (), "marker")


SOME = st.lists(MESSAGES, min_size=1, max_size=4)
ENTRIES = st.one_of(
    st.builds(make_single, MESSAGES),
    st.builds(make_batch, SOME, st.sampled_from([Codec.NONE, Codec.ZSTD])),
    st.builds(make_spark, SOME),
    st.builds(make_encrypted, SOME),
    st.builds(make_marker, st.integers(10, 12)),
)
Source = list[tuple[LedgerId, pa.RecordBatch]]


def rows_of(ledger: LedgerId, first: int, made: Sequence[Made]) -> list[pa.RecordBatch]:
    """As sealing and Spark's tasks store them; entries are numbered from `first`."""
    found = []
    for number, each in enumerate(made, first):
        if each.data is None:
            rows = make_rows([m.value for m in each.messages], [m.key for m in each.messages])
            rows = rows.set_column(rows.schema.get_field_index("key_b64"), "key_b64", pa.array([False] * rows.num_rows))
            # One entry, whatever the keys' slots are: that is not what is tested here.
            cut = cut_entries(rows, number, "t").batch
            cut = cut.set_column(1, "entry_id", pa.array([number] * rows.num_rows, pa.int64()))
            cut = cut.set_column(2, "batch_index", pa.array(range(rows.num_rows), pa.int32()))
            order = [m.value for m in each.messages], [m.key for m in each.messages]
            for name, values in zip(("value", "key"), order, strict=True):
                at = SEGMENT_SCHEMA.get_field_index(name)
                cut = cut.set_column(at, SEGMENT_SCHEMA.field(at), pa.array(values, pa.binary()))
            found.append(pa.RecordBatch.from_arrays(cut.columns, schema=SEGMENT_SCHEMA))
        else:
            stored = StoredEntry(ledger, EntryId(number), each.data)
            found += [decoded.batch for decoded in decode_entries([stored])]
    return found


def compacted(source: Source, *, retain_null_key: bool = False, shares: int = 1) -> Source:
    """Both passes."""
    ends: dict[LedgerId, int] = {}
    for ledger, rows in source:
        ends[ledger] = max(ends.get(ledger, 0), rows.column("entry_id")[-1].as_py() + 1)
    places = Places(ends)
    found = []
    for number in range(shares):
        keys = NewestOfKeys(places, retain_null_key=retain_null_key, share=Share(number, shares))
        for ledger, rows in source:
            keys.add_rows(ledger, 0, rows.select(COLUMNS))
        found.append(keys.finish())
    survivors = np.unique(np.concatenate(found))
    kept = [
        (ledger, kept_rows(ledger, 0, rows, survivors, places, retain_null_key=retain_null_key))
        for ledger, rows in source
    ]
    return [(ledger, each.rows) for ledger, each in kept if each is not None]


def delivered(source: Source) -> dict[tuple[int, int], list[ClientMessage] | bytes]:
    """Return a client's messages by entry; an entry that it cannot decrypt here is its bytes."""
    found: dict[tuple[int, int], list[ClientMessage] | bytes] = {}
    for ledger, rows in source:
        for entry in rebuild_entries(rows, ledger, compacted=True):
            is_encrypted = bool(read_metadata(entry.data).encryption_keys)
            found[ledger, entry.entry_id] = entry.data if is_encrypted else read_entry(entry.data)
    return found


def expected(
    log: Sequence[tuple[LedgerId, int, Made]], retain_null_key: bool
) -> dict[tuple[int, int], set[int] | None]:
    """Batch indexes that are left of each entry; None for an entry that is kept as it is."""
    newest: dict[Key, tuple[int, int, int]] = {}
    dead: set[tuple[int, int, int]] = set()
    opaque: list[tuple[int, int]] = []
    left: dict[tuple[int, int], set[int] | None] = {}
    for ledger, entry, made in log:
        if made.kind == "opaque":
            opaque.append((ledger, entry))
            left[ledger, entry] = None
            continue
        for index, message in enumerate(made.messages):
            place = (ledger, entry, index)
            if message.key is not None:
                newest[message.key, message.key_b64] = place
                if not message.value:
                    dead.add(place)
            elif retain_null_key:
                left.setdefault((ledger, entry), set()).add(index)  # type: ignore[union-attr]
    for ledger, entry, index in newest.values():
        if (ledger, entry, index) not in dead or (opaque and opaque[0] < (ledger, entry)):
            left.setdefault((ledger, entry), set()).add(index)  # type: ignore[union-attr]
    return left


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.lists(ENTRIES, max_size=8)), max_size=5), st.booleans(), st.integers(1, 3))
def test_newest_messages_are_left_as_they_were(
    rounds: list[tuple[bool, list[Made]]], retain_null_key: bool, shares: int
) -> None:
    log: list[tuple[LedgerId, int, Made]] = []
    base: Source = []
    ledger, entry = LedgerId(3), 0
    for is_new_ledger, made in rounds:
        if is_new_ledger:
            ledger, entry = LedgerId(ledger + 2), 0
        source = [*base, *((ledger, rows) for rows in rows_of(ledger, entry, made))]
        log += [(ledger, number, each) for number, each in enumerate(made, entry)]
        entry += len(made)
        base = compacted(source, retain_null_key=retain_null_key, shares=shares)

        by_place = {(each_ledger, number): each for each_ledger, number, each in log}
        found = delivered(base)
        left = expected(log, retain_null_key)
        assert list(found) == sorted(left)
        for place, indexes in left.items():
            original, now = by_place[place], found[place]
            if isinstance(now, bytes):
                assert now == original.data
                continue
            assert indexes is not None
            assert [not each.compacted_out for each in now] == [i in indexes for i in range(len(original.messages))]
            for index in indexes:
                assert (now[index].key, now[index].value) == (
                    original.messages[index].key,
                    original.messages[index].value,
                )


def test_an_entry_without_removed_messages_is_unchanged() -> None:
    made = make_batch([ClientMessage(b"1", b"a"), ClientMessage(b"2", b"b", properties=(("p", "q"),))], Codec.LZ4)
    (before,) = rows_of(LedgerId(1), 0, [made])

    ((_, after),) = compacted([(LedgerId(1), before)])

    assert after.equals(before)


def chunk(uuid: str, number: int, of: int, key: bytes = b"a") -> Made:
    said = MessageMetadata(uuid=uuid, chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of)
    return Made(single_entry(ClientMessage(b"%d" % number, key), metadata=said), ())


def left_of(made: Sequence[Made]) -> list[int]:
    source = [(LedgerId(1), rows) for rows in rows_of(LedgerId(1), 0, made)]
    return [entry for _, rows in compacted(source) for entry in rows.column("entry_id").to_pylist()]


def test_chunks_of_a_large_message_stay_or_go_together() -> None:
    small = make_single(ClientMessage(b"small", b"a"))
    assert left_of([chunk("x", 0, 2), small, chunk("x", 1, 2)]) == [0, 2]  # it is as new as its last chunk
    assert left_of([chunk("x", 0, 2), chunk("x", 1, 2), small]) == [2]
    assert left_of([chunk("x", 0, 2), chunk("y", 0, 2), chunk("x", 1, 2), chunk("y", 1, 2)]) == [1, 3]


def test_chunks_without_their_last_one_are_kept() -> None:
    small = make_single(ClientMessage(b"small", b"a"))
    assert left_of([chunk("x", 0, 3), small, chunk("x", 1, 3)]) == [0, 1, 2]


def test_a_tombstone_after_an_unreadable_batch_is_kept() -> None:
    opaque = make_encrypted([ClientMessage(b"1", b"a"), ClientMessage(b"2", b"b")])
    gone = make_single(ClientMessage(None, b"a"))
    assert left_of([gone, opaque]) == [1]
    assert left_of([opaque, gone]) == [0, 1]


def test_bytes_that_are_no_entry_are_kept() -> None:
    assert left_of([Made(b"\xff" * 40, ())]) == [0]


def test_a_share_with_too_many_keys_raises() -> None:
    keys = NewestOfKeys(Places({LedgerId(1): 2000}), max_bytes=1000)
    rows = make_rows([b"v"] * 1000, [b"key %d" % number for number in range(1000)])
    cut = cut_entries(rows, 0, "t").batch.select(COLUMNS)
    keys.add_rows(LedgerId(1), 0, cut)
    with pytest.raises(TooManyKeysError):
        keys.finish()
