"""The bytes of a cursor: golden, there and back, and damaged in every way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.model.errors import CorruptCursorError, FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import (
    NO_RECORD,
    CursorRecord,
    decode,
    decode_holes,
    encode,
    encode_holes,
    replay_records,
)

TOPIC = TopicId("0123456789abcdef" * 2)
INT63 = st.integers(0, 2**63 - 1)


def holes_of(whole: dict[int, set[int]], partial: dict[tuple[int, int], int]) -> AckHoles:
    holes = AckHoles()
    for ledger, entries in whole.items():
        for entry in entries:
            holes.add(ledger, entry)
    for (ledger, entry), bits in partial.items():
        holes.narrow(ledger, entry, bits)
    return holes


SETS = st.one_of(
    st.sets(INT63, min_size=1, max_size=24),
    st.builds(lambda first, count, step: set(range(first, first + count * step, step)), INT63.map(lambda n: n // 2),
              st.integers(1, 3_000), st.integers(1, 3)),
)  # fmt: skip
HOLES = st.builds(
    holes_of,
    st.dictionaries(INT63, SETS, max_size=3),
    st.dictionaries(st.tuples(INT63, INT63), st.integers(1, 2**200), max_size=5),
)
RECORDS = st.builds(
    CursorRecord,
    kind=st.sampled_from(["snapshot", "change"]),
    topic_id=st.integers(0, 2**128 - 1).map(lambda n: TopicId(f"{n:032x}")),
    subscription=st.text(min_size=1, max_size=20),
    epoch=INT63,
    n=INT63,
    mark_delete=st.builds(Position, INT63, INT63),
    ack_holes=HOLES.map(encode_holes),
)
SAMPLE = CursorRecord(
    "change", TOPIC, "s€", 3, 300, Position(LedgerId(7), EntryId(128)),
    encode_holes(holes_of({7: {130, 131}, 9: {0}}, {(7, 200): 0b1010})),
)  # fmt: skip
LONG = replace(SAMPLE, kind="snapshot", ack_holes=encode_holes(holes_of({7: set(range(200, 300, 2))}, {(8, 1): 6})))


def test_the_format_equals_its_first_version() -> None:
    assert encode(SAMPLE).hex() == GOLDEN
    assert decode(bytes.fromhex(GOLDEN)) == SAMPLE
    assert decode(bytes.fromhex(GOLDEN_LONG)) == LONG


@given(RECORDS)
def test_a_record_is_read_back(record: CursorRecord) -> None:
    assert decode(encode(record)) == record


@given(HOLES)
def test_holes_are_read_back_equal(holes: AckHoles) -> None:
    again = decode_holes(encode_holes(holes))
    assert again == holes
    assert encode_holes(again) == encode_holes(holes)


def test_every_flipped_bit_is_found() -> None:
    for record in (SAMPLE, LONG):
        data = encode(record)
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptCursorError, match="from another copy"):
                decode(bytes(flipped))


def test_every_truncation_and_every_tail_is_found() -> None:
    for read, data in ((decode, encode(LONG)), (decode_holes, LONG.ack_holes)):
        for length in range(1, len(data)):
            with pytest.raises(CorruptCursorError):
                read(data[:length])
        with pytest.raises(CorruptCursorError):
            read(data + b"\0")


@given(st.binary(max_size=200))
def test_garbage_gives_the_one_error(data: bytes) -> None:
    with pytest.raises(CorruptCursorError):
        decode(data)
    if data:
        with pytest.raises(CorruptCursorError):
            decode_holes(data)


def sealed(version: int, body: bytes) -> bytes:
    head = bytes((version,))
    return head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body


@given(st.binary(max_size=60))
def test_nonsense_with_a_right_checksum_gives_the_one_error_or_nothing_worse(body: bytes) -> None:
    for read in (decode, decode_holes):
        with suppress(CorruptCursorError):
            assert read(sealed(1, body)) is not None


@given(st.data())
def test_a_changed_record_with_a_right_checksum_gives_the_one_error_or_a_record(data: st.DataObject) -> None:
    body = bytearray(encode(SAMPLE)[5:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptCursorError):
        found = decode(sealed(1, bytes(body)))
        assert decode(encode(found)) == found


def test_a_newer_version_is_refused_as_such() -> None:
    for read in (decode, decode_holes):
        with pytest.raises(FormatVersionError, match="version 2"):
            read(sealed(2, b"what only the future knows"))


def test_unstorable_records_are_refused() -> None:
    for topic_id in ("", "x" * 32, "00", "0123456789ABCDEF" * 2):
        with pytest.raises(InvalidArgumentError, match="32 hex digits"):
            encode(replace(SAMPLE, topic_id=TopicId(topic_id)))
    with pytest.raises(InvalidArgumentError, match="out of range"):
        encode(replace(SAMPLE, n=NO_RECORD))
    with pytest.raises(InvalidArgumentError, match="does not follow"):
        SAMPLE.begun(SAMPLE.epoch)


def test_replay_takes_the_newest_epoch_and_never_changes_without_their_snapshot() -> None:
    base, change = LONG, replace(SAMPLE, n=301)
    stale = replace(SAMPLE, epoch=2, n=999, mark_delete=Position(LedgerId(8), EntryId(0)))
    found = replay_records([change, stale, base, change])
    assert (found.kind, found.rank, found.mark_delete) == ("snapshot", (3, 301), SAMPLE.mark_delete)
    holes = decode_holes(found.ack_holes)
    assert holes.is_acked(7, 131)
    assert holes.is_acked(7, 298)
    assert holes.ack_set(8, 1) == 6
    for records in ([change], [base, replace(change, epoch=4)]):
        with pytest.raises(CorruptCursorError, match="no snapshot"):
            replay_records(records)
    for mixed in ([], [base, replace(base, subscription="other")]):
        with pytest.raises(InvalidArgumentError, match="cursors cannot"):
            replay_records(mixed)


def test_a_replay_drops_holes_before_the_mark_delete_position() -> None:
    change = replace(SAMPLE, n=302, mark_delete=Position(LedgerId(8), EntryId(2)), ack_holes=b"")
    assert replay_records([LONG, change]).ack_holes == b""


def test_a_snapshot_is_kept_in_the_cursors_table(root: Root) -> None:
    rows = [replace(LONG, n=n).to_row() for n in (2, 3, 1)]
    root.store.append_cursors(rows)
    (row,) = root.store.cursors().of(TOPIC, "s€")
    assert row.slot == WHOLE
    assert CursorRecord.from_row(row) == replace(LONG, n=3)
    bare = CursorRow(TOPIC, "s", WHOLE, 1, 1, 5, 6)
    assert CursorRecord.from_row(bare).to_row() == bare


GOLDEN = "0115d41e94010123456789abcdef0123456789abcdef0473e282ac03ac02078001014088e3f002070282010101c801010a02010000"
GOLDEN_LONG = (
    "01486f598a000123456789abcdef0123456789abcdef0473e282ac03ac0207800101f74cd7e6020732800101000000000000"
    "00000000003a300000010000000000310010000000c800ca00cc00ce00d000d200d400d600d800da00dc00de00e000e200e4"
    "00e600e800ea00ec00ee00f000f200f400f600f800fa00fc00fe00000102010401060108010a010c010e0110011201140116"
    "0118011a011c011e01200122012401260128012a0100010001010106"
)
