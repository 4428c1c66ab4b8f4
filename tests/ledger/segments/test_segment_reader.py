import errno
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.segments import segment_reader
from pulsar_on_spark.ledger.segments.segment_format import FORMAT_KEY, SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptSegmentError,
    FormatVersionError,
    InvalidArgumentError,
    SegmentGoneError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName, WriteId
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.segment_files import FileSource
from pulsar_on_spark.testing.failing_files import FailingFiles
from tests.kit.open_files import open_files_under

WRITE_ID = WriteId("0123456789abcdef0123456789abcdef")


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("count", [3, 40])
def test_round_trip_of_any_range_and_columns(store, batch, count):
    batches = [batch(20, seed) for seed in range(count)]
    record = store.write(batches).file_record(WRITE_ID)
    assert store.read(record) == batches
    assert store.read(record, ()) == []
    for first in range(0, count, 7):
        assert store.read(record, [first]) == [batches[first]]
        assert store.read(record, range(first, len(batches))) == batches[first:]
    chosen = ["value", "entry_id", "properties"]
    expected = [one.select(["entry_id", "properties", "value"]) for one in batches]
    assert store.read(record, columns=chosen) == expected
    assert store.read(record, columns=SEGMENT_SCHEMA.names) == batches
    assert store.reports == []


@pytest.mark.parametrize("group_bytes", [1, 5000, 2**20])
def test_groups_of_any_size_read_the_same(store, batch, monkeypatch, group_bytes):
    monkeypatch.setattr(FileSource, "group_bytes", group_bytes)
    batches = [batch(20, seed) for seed in range(20)]
    record = store.write(batches).file_record(WRITE_ID)
    assert store.read(record, range(1, 19)) == batches[1:19]
    assert store.read(record, [0, 3, 4, 19]) == [batches[number] for number in (0, 3, 4, 19)]


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [2, 3], [0, 2]])
def test_what_is_announced_is_what_is_read(store, batch, monkeypatch, numbers):
    announced, read = [], []
    read_into = FileSource.read_into

    def recorded(self, offset, target):
        read.append((offset, offset + len(target)))
        return read_into(self, offset, target)

    monkeypatch.setattr(FileSource, "expect", lambda self, ranges: announced.extend(ranges))
    monkeypatch.setattr(FileSource, "read_into", recorded)
    monkeypatch.setattr(FileSource, "group_bytes", 1)
    record = store.write([batch(5, seed) for seed in range(4)]).file_record(WRITE_ID)

    assert len(store.read(record, numbers)) == len(numbers)
    assert read == announced
    assert len(read) == 1 + len(numbers)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows_are_read_back(new_store, tmp_path_factory, data):
    arrays = {
        "value": st.none() | st.binary(max_size=50),
        "key": st.none() | st.binary(max_size=5),
        "producer_name": st.none() | st.text(max_size=5),
        "publish_time": st.none() | st.integers(-(2**62), 2**62),
        "properties": st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), max_size=3),
        "codec": st.none() | st.integers(-128, 127),
        "key_b64": st.none() | st.booleans(),
    }
    batches = []
    for _ in range(data.draw(st.integers(0, 3))):
        rows = data.draw(st.integers(0, 6))
        columns = [
            pa.array(data.draw(st.lists(arrays[field.name], min_size=rows, max_size=rows)), field.type)
            if field.name in arrays
            else pa.nulls(rows, field.type)
            for field in SEGMENT_SCHEMA
        ]
        batches.append(pa.record_batch(columns, schema=SEGMENT_SCHEMA))
    store = new_store(base=tmp_path_factory.mktemp("rows"))
    record = store.write(batches).file_record(WRITE_ID)
    assert store.read(record) == batches
    verify_file(record, store.paths[0])


def test_missing_ranges_and_columns_are_refused(store, batch):
    record = store.write([batch(3)] * 3).file_record(WRITE_ID)
    for numbers in ([-1], range(4), [3], [1, 1], [2, 1]):
        with pytest.raises(InvalidArgumentError, match="has 3 batches"):
            store.read(record, numbers)
    with pytest.raises(InvalidArgumentError, match="no column 'payload'"):
        store.read(record, columns=["payload"])
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        store.read(record, columns=[])


@pytest.mark.long
def test_every_flipped_bit_is_detected(store, batch):
    """Flip one bit of each byte, all eight in turn, and all bits of some bytes."""
    batches = [batch(2, 1), batch(3, 2)]
    record = store.write(batches, "3/1/1").file_record(WRITE_ID)
    (only,) = record.copies
    location = store.location(record, only)
    footer_start = record.length - record.tile_lengths[-1]
    for position in range(record.length):
        for bit in range(8) if position % 64 == 0 else (position % 8,):
            flip(location, position, bit)
            with pytest.raises(CorruptSegmentError, match="fails the checksum"):
                verify_file(record, store.by_id[PathId(only)])
            if position < footer_start:
                with pytest.raises(CorruptSegmentError, match="fails the checksum"):
                    store.read(record)
            else:
                assert store.read(record) == batches
            flip(location, position, bit)
    verify_file(record, store.by_id[PathId(only)])


def test_a_truncated_copy_is_detected_at_every_length(store, batch):
    record = store.write([batch(2)], "3/1/1").file_record(WRITE_ID)
    (only,) = record.copies
    location = store.location(record, only)
    for length in (record.length + 1, *reversed(range(record.length))):
        os.truncate(location, length)
        for use in (store.read, lambda record: verify_file(record, store.by_id[PathId(only)])):
            with pytest.raises(CorruptSegmentError, match=f"has {length} bytes instead of {record.length}"):
                use(record)


@pytest.mark.parametrize("count", [2, 30])
def test_a_bad_copy_is_passed_over_and_reported(store, batch, count):
    """The read is right whichever copy is good, and each bad copy that was tried is reported once."""
    batches = [batch(10, seed) for seed in range(count)]
    record = store.write(batches).file_record(WRITE_ID)
    for good in record.copies:
        bad = set(record.copies) - {good}
        for path_id in bad:
            flip(store.location(record, path_id), record.length // 2, 3)
        before = len(store.reports)
        assert store.read(record) == batches
        reported = [path_id for path_id, _ in store.reports[before:]]
        assert set(reported) <= bad
        assert len(reported) == len(set(reported))
        for path_id in bad:
            flip(store.location(record, path_id), record.length // 2, 3)
    assert len(store.reports) == 3
    assert all("fails the checksum" in reason for _, reason in store.reports)


def damage_flip(path, location, record):
    flip(location, record.length // 2, 0)


def damage_truncate(path, location, record):
    os.truncate(location, record.length - 1)


def damage_delete(path, location, record):
    location.unlink()


def damage_directory(path, location, record):
    location.unlink()
    location.mkdir()


def damage_unmount(path, location, record):
    shutil.rmtree(path.directory)


def damage_swap(path, location, record):
    identity = path.directory / IDENTITY_NAME
    identity.write_bytes(identity.read_bytes().replace(b'"path_id": ', b'"path_id": 4'))


def damage_sidecar(path, location, record):
    flip(path.sidecar_file(SegmentName(FileId(record.file_id))), 20, 0)


def damage_no_sidecar(path, location, record):
    path.sidecar_file(SegmentName(FileId(record.file_id))).unlink()


DAMAGES = {
    damage_flip: "fails the checksum",
    damage_truncate: "bytes instead of",
    damage_delete: "is missing",
    damage_directory: "bytes instead of",
    damage_unmount: "mount its disk there",
    damage_swap: "mount the right disk",
    damage_sidecar: "Sidecar of segment file .* fails its checksum",
    damage_no_sidecar: "Sidecar of segment file .* is missing",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_kind_of_damage(store, batch, damage):
    batches = [batch(10, seed) for seed in range(20)]
    record = store.write(batches).file_record(WRITE_ID)
    for number, path_id in enumerate(record.copies):
        if number < 2:
            damage(store.by_id[PathId(path_id)], store.location(record, path_id), record)
    assert store.read(record) == batches
    reported = {path_id for path_id, _ in store.reports}
    assert reported <= set(record.copies[:2])

    damage(store.by_id[PathId(record.copies[2])], store.location(record, record.copies[2]), record)
    with pytest.raises((CorruptSegmentError, StoragePathError), match=DAMAGES[damage]):
        verify_file(record, store.paths[0])
    with pytest.raises((CorruptSegmentError, CopiesUnreachableError), match=DAMAGES[damage]) as error:
        store.read(record)
    message = str(error.value)
    assert f"Segment file {record.file_id}" in message
    assert "batches 0 to 19 (ledger 7)" in message
    assert all(f"[path {path_id}]" in message for path_id in record.copies)
    assert isinstance(error.value, SegmentGoneError) == (damage in (damage_delete, damage_no_sidecar))
    assert isinstance(error.value, CopiesUnreachableError) == (damage in (damage_unmount, damage_swap))
    assert "failOnDataLoss" not in message


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open", "read_into"])
def test_errors_of_the_operating_system_are_not_damage(store, batch, call, number):
    record = store.write([batch(10, seed) for seed in range(20)]).file_record(WRITE_ID)
    directories = tuple(path.directory for path in store.paths)
    for skip in range(6):  # the identity file, the segment, its sidecar, a group of batches
        refusing = FailingFiles(directories, call, skip, number)
        with suppress(CopiesUnreachableError):
            assert len(store.read(record, files=refusing)) == 20
    with pytest.raises(CopiesUnreachableError, match=os.strerror(number)):
        store.read(record, files=FailingFiles(directories, call, 0, number))
    with pytest.raises(StoragePathError, match=os.strerror(number)):
        verify_file(record, store.paths[0], FailingFiles(directories, call, 2, number))


def test_a_file_on_a_disk_that_goes_away_just_now_is_not_gone(store, batch):
    """The disk goes away between the check of the path's identity and the opening of the file."""
    record = store.write([batch(3)]).file_record(WRITE_ID)

    class Unmounting:
        def __getattr__(self, name):
            return getattr(OS_FILES, name)

        def open(self, path):
            if path.suffix == ".arrow":
                for each in store.paths:
                    shutil.rmtree(each.directory, ignore_errors=True)
            return OS_FILES.open(path)

    with pytest.raises(CopiesUnreachableError, match="mount its disk"):
        store.read(record, files=Unmounting())


def test_a_file_gone_from_everywhere_is_no_bad_copy(store, batch):
    record = store.write([batch(3)]).file_record(WRITE_ID)
    for path in store.paths:
        path.delete_segment(SegmentName(FileId(record.file_id)))
    with pytest.raises(SegmentGoneError, match="no good copy left: look up where"):
        store.read(record)
    assert store.reports == []


def test_a_file_missing_on_present_paths_is_not_lost_while_a_path_is_away(store, batch):
    record = store.write([batch(3)]).file_record(WRITE_ID)
    shutil.rmtree(store.paths[1].directory)
    for path in store.paths[::2]:
        path.delete_segment(SegmentName(FileId(record.file_id)))
    with pytest.raises(CopiesUnreachableError, match="mount its disk"):
        store.read(record)
    store.paths[1] = replace(store.paths[1], is_given_up=True)
    with pytest.raises(SegmentGoneError, match="mount its disk"):
        store.read(record)


def test_a_file_with_missing_and_damaged_copies_is_gone_not_corrupt(store, batch):
    record = store.write([batch(3)]).file_record(WRITE_ID)
    for path in store.paths[:2]:
        path.delete_segment(SegmentName(FileId(record.file_id)))
    flip(store.location(record, 2), 100, 0)
    with pytest.raises(SegmentGoneError):
        store.read(record)
    assert {path_id for path_id, _ in store.reports} == {2}


def test_a_copy_that_turns_bad_while_it_is_read(store, batch, monkeypatch):
    monkeypatch.setattr(FileSource, "group_bytes", 1)
    batches = [batch(50, seed) for seed in range(8)]
    record = store.write(batches).file_record(WRITE_ID)
    for skip in range(10):  # the identity file, the schema, and each batch
        directory = store.paths[skip % 3].directory
        files = FailingFiles((directory,), "read_into", skip, 5)
        assert store.read(record, files=files) == batches
    assert store.reports
    assert all("Input/output error" in reason for _, reason in store.reports)


def test_a_path_that_the_root_does_not_know(store, batch):
    record = store.write([batch(3)]).file_record(WRITE_ID)
    store.paths = store.paths[:1]
    assert store.read(record) == [batch(3)]
    assert all("not in the root's metadata" in reason for _, reason in store.reports)
    store.paths = []
    with pytest.raises(CopiesUnreachableError, match="not in the root's metadata"):
        store.read(record)
    with pytest.raises(CorruptSegmentError, match="has no copies"):
        store.read(record.model_copy(update={"copies": ()}))


def test_tiles_that_do_not_fit_the_file_are_refused(store, batch):
    record = store.write([batch(3)]).file_record(WRITE_ID)
    broken = record.model_copy(update={"tile_crcs": record.tile_crcs[:-1]})
    with pytest.raises(CorruptSegmentError, match="has 2 checksums for 3 tiles"):
        store.read(broken)


def record_of(store, schema, rows, file_id="ab-0"):
    """A file that another writer may have made: right checksums, any schema."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_file(sink, schema)
    empty = pa.BufferOutputStream()
    pa.ipc.new_file(empty, schema).close()
    footer = 16 + int.from_bytes(empty.getvalue().to_pybytes()[12:16], "little")
    writer.write_batch(rows)
    end = sink.tell()
    writer.close()
    content = sink.getvalue().to_pybytes()
    tiles = [content[:footer], content[footer:end], content[end:]]
    path = store.paths[0]
    path.make_segment_directory(SegmentName(FileId(file_id)))
    path.segment_file(SegmentName(FileId(file_id))).write_bytes(content)
    return FileRecord(
        file_id=file_id,
        write_id=WRITE_ID,
        copies=(0,),
        length=len(content),
        batches=1,
        tile_lengths=tuple(len(tile) for tile in tiles),
        tile_crcs=tuple(crc32c(tile) for tile in tiles),
    )


def test_newer_formats_are_refused(store, batch):
    schema = SEGMENT_SCHEMA.with_metadata({FORMAT_KEY: b"3"})
    record = record_of(store, schema, batch(3))
    with pytest.raises(FormatVersionError, match=f"Segment file {record.file_id} has segment format 3.*upgrade"):
        store.read(record)
    assert store.reports == []


def test_uncompressed_batches_outlive_the_reader(store, batch):
    """Such batches are views of the buffer that was read, which must not be reused."""
    record = record_of(store, SEGMENT_SCHEMA, batch(30))
    (first,) = store.read(record)
    store.read(record)
    assert first == batch(30)


def test_bytes_that_no_arrow_reader_takes(store, batch):
    record = store.write([batch(3)], "3/1/1").file_record(WRITE_ID)
    location = store.location(record, record.copies[0])
    content = bytearray(location.read_bytes())
    start, length = record.tile_lengths[0], record.tile_lengths[1]
    content[start + 8 : start + length] = b"\xff" * (length - 8)
    location.write_bytes(content)
    crcs = (record.tile_crcs[0], crc32c(content[start : start + length]), record.tile_crcs[2])
    with pytest.raises(CorruptSegmentError, match="passes its checksums and cannot be parsed"):
        store.read(record.model_copy(update={"tile_crcs": crcs}))


def test_descriptors_are_given_back(tmp_path, store, batch):
    record = store.write([batch(10, seed) for seed in range(20)]).file_record(WRITE_ID)
    reading = segment_reader.read_batches(record, lambda: store.by_id, range(20), None, print)
    next(reading)
    reading.close()
    store.read(record)
    flip(store.location(record, 0), 200, 0)
    store.read(record)
    with pytest.raises(CorruptSegmentError):
        verify_file(record, store.paths[0], OS_FILES)
    assert open_files_under(tmp_path) == []
