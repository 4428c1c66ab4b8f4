import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.ledger.journal.codec_encode import (
    JOIN_BELOW_BYTES,
    MAX_BUFFERS,
    EntryGroup,
    encode_cursor,
    encode_entries,
    encode_lac,
    encode_roll,
)
from pulsar_on_spark.ledger.journal.frame_header import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    ChainPoint,
    pack_header,
    parse_header,
)
from pulsar_on_spark.ledger.journal.frames import CURSOR_SCHEMA, ENTRIES_SCHEMA, Frame, payload_views
from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError, InvalidArgumentError
from tests.ledger.journal.journal_files import content, group, small_frames

AT = ChainPoint(5, 0xABCD)


def decode(data: bytes) -> Frame:
    """The frame, as the scan makes it of bytes whose checksums it has checked."""
    view = memoryview(data)
    header = parse_header(view[:HEADER_BYTES], "A frame")
    assert header.size_bytes == len(data)
    assert crc32c(view[HEADER_BYTES : header.head_bytes]) == header.directory_crc
    assert crc32c(view[header.head_bytes :]) == header.content_crc
    return Frame(header, "file f", 0, view[HEADER_BYTES : header.head_bytes], view, 0)


def forge(kind: FrameKind, rows: int, directory: bytes, body: bytes) -> Frame:
    """A frame with good checksums around any bytes."""
    packed, _ = pack_header(kind, AT, 4, rows, directory, len(body), crc32c(body))
    return decode(packed + directory + body)


def address(view: memoryview) -> int:
    return pa.py_buffer(view).address


def test_the_content_is_an_arrow_message():
    entries, cursor, *_ = small_frames(AT)
    frame = decode(content(entries))
    batch = pa.ipc.read_record_batch(pa.py_buffer(frame.content), ENTRIES_SCHEMA)
    batch.validate(full=True)
    assert batch == frame.record_batch()
    stream = ENTRIES_SCHEMA.serialize().to_pybytes() + bytes(frame.content)
    assert pa.ipc.open_stream(stream).read_all() == pa.table(batch)
    records = pa.ipc.read_record_batch(pa.py_buffer(decode(content(cursor)).content), CURSOR_SCHEMA)
    records.validate(full=True)
    assert records.to_pydict() == {"subscription": [b"topic/sub", b""], "record": [b"record", b"\0"]}


def test_entries_are_read_back_by_ledger():
    frame = decode(content(encode_entries(group((7, 3, b"a"), (9, 0, b"bb"), (7, 4, b""), (9, 1, b"c")), AT, 4)))
    assert frame.header.number == 5
    assert frame.header.lac == 4
    assert frame.header.previous_crc == AT.crc
    assert frame.record_batch().to_pydict() == {
        "ledger_id": [7, 7, 9, 9],
        "entry_id": [3, 4, 0, 1],
        "message_count": [1, 2, 1, 2],
        "publish_time": [pa.scalar(1_700_000_000_000 + n, pa.timestamp("ms", "UTC")).as_py() for n in (3, 4, 0, 1)],
        "payload": [b"a", b"", b"bb", b"c"],
    }
    runs = frame.runs()
    assert [(run.ledger_id, run.first_entry, run.entries, run.first_row) for run in runs] == [
        (7, 3, 2, 0),
        (9, 0, 2, 2),
    ]
    payloads = [frame.data[run.payload_offset : run.payload_offset + run.payload_bytes] for run in runs]
    assert payloads == [b"a", b"bbc"]


ids = st.integers(0, 2**63 - 1000)
runs_of_a_ledger = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.lists(st.binary(max_size=60), min_size=1, max_size=5)
    ),
    min_size=1,
    max_size=30,
)


@given(st.dictionaries(ids, st.tuples(ids, runs_of_a_ledger), min_size=1, max_size=8), st.integers(-1, 4), st.data())
def test_any_entries_round_trip(ledgers, lac, data):
    rest = {ledger: list(runs) for ledger, (_, runs) in ledgers.items()}
    expected = {ledger: [] for ledger in ledgers}
    entries = EntryGroup()
    while any(rest.values()):
        ledger = data.draw(st.sampled_from([ledger for ledger, runs in rest.items() if runs]))
        count, time_ms, payloads = rest[ledger].pop(0)
        first = ledgers[ledger][0] + len(expected[ledger])
        entries.add(ledger, first, count, time_ms, payloads)
        expected[ledger] += [(first + row, count, time_ms, payload) for row, payload in enumerate(payloads)]
    frame = decode(content(encode_entries(entries, AT, lac)))
    batch = frame.record_batch()
    batch.validate(full=True)
    assert batch == pa.ipc.read_record_batch(pa.py_buffer(frame.content), ENTRIES_SCHEMA)
    found = {}
    for run in frame.runs():
        columns = frame.data[frame.header.head_bytes : frame.columns_end]
        payloads = frame.data[run.payload_offset : run.payload_offset + run.payload_bytes]
        rows = frame.batch_of(run, columns, payloads)
        assert rows == batch.slice(run.first_row, run.entries)
        assert set(rows["ledger_id"].to_pylist()) == {run.ledger_id}
        times = rows["publish_time"].cast(pa.int64()).to_pylist()
        names = ("entry_id", "message_count")
        found[run.ledger_id] = list(
            zip(*(rows[name].to_pylist() for name in names), times, map(bytes, payload_views(rows)), strict=True)
        )
    assert found == expected
    assert frame.header.lac == lac
    assert (entries.entries, entries.payload_bytes) == (len(batch), sum(map(len, payload_views(batch))))


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200)), min_size=1, max_size=20))
def test_any_cursor_records_round_trip(records):
    frame = decode(content(encode_cursor(records, AT, 3)))
    assert frame.cursor_records() == records
    assert frame.header.kind is FrameKind.CURSOR


def test_a_lac_frame_has_a_header_only_and_a_roll_frame_names_the_next():
    lac = decode(content(encode_lac(AT, 4)))
    assert (lac.header.kind, lac.header.lac, len(lac.data)) == (FrameKind.LAC, 4, HEADER_BYTES)
    roll = decode(content(encode_roll(2**40, AT, 4)))
    assert (roll.header.kind, roll.next_fragment()) == (FrameKind.ROLL, 2**40)


def test_each_frame_links_to_its_predecessor():
    frames = small_frames(AT)
    headers = [decode(content(frame)).header for frame in frames]
    assert headers == [frame.header for frame in frames]
    assert [header.number for header in headers] == [5, 6, 7, 8]
    assert [header.previous_crc for header in headers] == [AT.crc, *(header.crc for header in headers[:-1])]
    assert encode_lac(AT, 4).header.crc != encode_lac(ChainPoint(AT.next_number, AT.crc + 1), 4).header.crc


def test_small_payloads_are_joined_and_large_ones_not_copied():
    small = encode_entries(group(*((1, entry, bytes(1024)) for entry in range(100))), AT, 4)
    assert len(small.buffers) == 2
    payload = bytes(JOIN_BELOW_BYTES * 2)
    large = encode_entries(group((1, 0, payload), (2, 0, payload)), AT, 4)
    assert sum(buffer is payload for buffer in large.buffers) == 2
    many = encode_entries(group(*((1, entry, payload) for entry in range(MAX_BUFFERS))), AT, 4)
    assert len(many.buffers) <= MAX_BUFFERS
    for frame in (small, large, many):
        assert sum(map(len, frame.buffers)) == frame.header.size_bytes
        decode(content(frame)).record_batch().validate(full=True)


def test_payloads_are_read_where_they_lie():
    payloads = [bytes([n]) * 1000 for n in range(5)]
    data = content(encode_entries(group(*((1, n, payload) for n, payload in enumerate(payloads))), AT, 4))
    frame = decode(data)
    views = payload_views(frame.record_batch().slice(1, 3))
    assert views == payloads[1:4]
    start = address(frame.data) + frame.runs()[0].payload_offset
    assert [address(view) for view in views] == [start + 1000 * n for n in (1, 2, 3)]


def test_memoryviews_and_bytearrays_are_taken():
    frame = decode(content(encode_entries(group((1, 0, memoryview(b"xaby")[1:3]), (1, 1, bytearray(b"c"))), AT, 4)))
    assert payload_views(frame.record_batch()) == [b"ab", b"c"]


def test_entries_out_of_order_or_range_are_refused_and_leave_the_group_unchanged():
    entries = group((7, 3, b"a"))
    for entry, count, time_ms in (
        (3, 1, 0),
        (5, 1, 0),
        (2, 1, 0),
        (4, -1, 0),
        (4, 2**31, 0),
        (4, 1, -1),
        (4, 1, 2**63),
    ):
        with pytest.raises(InvalidArgumentError, match=f"Entry 7:{entry}"):
            entries.add(7, entry, count, time_ms, [b"x"])
    entries.add(7, 4, 0, 2**63 - 1, [b"b"])
    assert decode(content(encode_entries(entries, AT, 4))).record_batch()["payload"].to_pylist() == [b"a", b"b"]
    assert (entries.entries, entries.payload_bytes) == (2, 2)


def test_empty_and_too_long_frames_are_refused():
    with pytest.raises(InvalidArgumentError, match="not empty"):
        encode_entries(EntryGroup(), AT, 4)
    with pytest.raises(InvalidArgumentError, match="at least one"):
        encode_cursor([], AT, 4)
    mebibyte = bytes(1024 * 1024)
    with pytest.raises(InvalidArgumentError, match="64 entries would have"):
        encode_entries(group(*((1, entry, mebibyte) for entry in range(64))), AT, 4)
    with pytest.raises(InvalidArgumentError, match="64 cursor records would have"):
        encode_cursor([(b"", mebibyte)] * 64, AT, 4)
    largest = encode_entries(group(*((1, entry, mebibyte) for entry in range(63))), AT, 4)
    assert decode(content(largest)).record_batch().num_rows == 63


@pytest.mark.parametrize("kind", [FrameKind.ATTACH, FrameKind.TXN])
def test_reserved_kinds_are_read_as_such(kind):
    frame = forge(kind, 1, b"", bytes(16))
    assert frame.header.kind is kind
    for read in (frame.runs, frame.record_batch, frame.cursor_records, frame.next_fragment):
        with pytest.raises(CorruptJournalError, match=f"Frame 5 of file f, at byte 0, .*{kind.name}"):
            read()


def repacked(position: int, *values: int) -> memoryview:
    """The header of a LAC frame with other bytes at a position, and a good checksum."""
    header = bytearray(content(encode_lac(AT, 4)))
    header[position : position + len(values)] = values
    header[-4:] = crc32c(header[:-4]).to_bytes(4, "little")
    return memoryview(header)


def test_headers_with_good_checksums_that_no_writer_makes():
    with pytest.raises(FormatVersionError, match=r"A frame has frame format 2.*upgrade"):
        parse_header(repacked(4, 2), "A frame")
    for kind in (0, 7, 255):
        with pytest.raises(CorruptJournalError, match=f"A frame is of kind {kind}"):
            parse_header(repacked(6, kind), "A frame")
    for size_bytes in (0, 48, 57, MAX_FRAME_BYTES + 8, 2**32 - 8):
        with pytest.raises(CorruptJournalError, match=f"A frame claims {size_bytes} bytes"):
            parse_header(repacked(8, *size_bytes.to_bytes(4, "little")), "A frame")
    with pytest.raises(CorruptJournalError, match="A frame claims"):
        parse_header(repacked(12, 255, 255, 255, 255), "A frame")
    with pytest.raises(CorruptJournalError, match="checksum"):
        parse_header(repacked(0, 0), "A frame")


@pytest.mark.parametrize(("number", "message_bytes"), [(0, 352), (1, 224)])
def test_contents_with_good_checksums_that_no_writer_makes(number, message_bytes):
    """Directory, message and ids with any byte changed are refused; the rest still makes a valid batch, or is."""
    frame = decode(content(small_frames(AT)[number]))
    directory_bytes, data = len(frame.directory), bytes(frame.data[HEADER_BYTES:])
    must_be = directory_bytes + message_bytes + 2 * 8 * frame.header.rows * (number == 0)
    for position in range(len(data)):
        for value in (1, 0x80, 0xFF):
            bad = bytearray(data)
            bad[position] ^= value
            directory, body = bytes(bad[:directory_bytes]), bytes(bad[directory_bytes:])
            forged = forge(frame.header.kind, frame.header.rows, directory, body)
            try:
                read_all(forged)
            except CorruptJournalError:
                pass
            else:
                assert position >= must_be


def test_a_ledger_is_in_the_directory_once_and_payloads_end_the_frame():
    frame = decode(content(encode_entries(group((7, 0, b"12345678"), (9, 1, b"12345678")), AT, 4)))
    read_all(frame)
    twice = bytearray(frame.data[HEADER_BYTES:])
    twice[32] = 7
    ledger_ids = frame.header.head_bytes - HEADER_BYTES + 352
    twice[ledger_ids + 8] = 7
    for data in (bytes(twice), bytes(frame.data[HEADER_BYTES:]) + bytes(8)):
        with pytest.raises(CorruptJournalError, match="a wrong directory"):
            read_all(forge(FrameKind.ENTRIES, 2, data[:64], data[64:]))


def test_a_ledger_needs_all_its_bytes():
    """Arrow would read behind the end of a buffer that is too short."""
    frame = decode(content(small_frames(AT)[0]))
    run = frame.runs()[0]
    columns = frame.data[frame.header.head_bytes : frame.columns_end]
    payloads = frame.data[run.payload_offset : run.payload_offset + run.payload_bytes]
    for part in ((columns[:-1], payloads), (columns, payloads[:-1]), (columns[:0], payloads), (columns, payloads[:0])):
        with pytest.raises(CorruptJournalError, match="Frame 5 of file f"):
            frame.batch_of(run, *part)


def read_all(frame: Frame) -> None:
    if frame.header.kind is FrameKind.CURSOR:
        frame.cursor_records()
        return
    if frame.header.kind is FrameKind.ROLL:
        frame.next_fragment()
        return
    batch = frame.record_batch()
    batch.validate(full=True)
    columns = frame.data[frame.header.head_bytes : frame.columns_end]
    for run in frame.runs():
        payloads = frame.data[run.payload_offset : run.payload_offset + run.payload_bytes]
        frame.batch_of(run, columns, payloads).validate(full=True)


@given(
    st.sampled_from([FrameKind.ENTRIES, FrameKind.CURSOR, FrameKind.ROLL]),
    st.integers(0, 2**32 - 1) | st.integers(0, 4),
    st.integers(0, 3).flatmap(lambda runs: st.binary(min_size=32 * runs, max_size=32 * runs)),
    st.integers(0, 80).flatmap(lambda words: st.binary(min_size=8 * words, max_size=8 * words)),
)
def test_garbage_with_good_checksums_gives_one_error(kind, rows, directory, body):
    frame = forge(kind, rows, directory, body)
    if kind is FrameKind.ROLL and len(body) == 8:
        assert frame.next_fragment() == int(np.frombuffer(body, "<u8")[0])
    else:
        with pytest.raises(CorruptJournalError, match="file f"):
            read_all(frame)
