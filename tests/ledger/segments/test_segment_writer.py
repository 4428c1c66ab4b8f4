import errno
import os
import pickle
import subprocess
import sys
import time
from itertools import combinations

import pyarrow as pa
import pytest

from pulsar_on_spark.ledger.segments.segment_format import INLINE_BATCHES
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.model.errors import InvalidArgumentError, NotEnoughCopiesError
from pulsar_on_spark.model.ids import FileId, PathId, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.placement import preferred
from pulsar_on_spark.testing.failing_files import FailingFiles
from tests.kit.cached_bytes import cached_bytes, can_forget

WRITE_ID = WriteId("0123456789abcdef0123456789abcdef")
STEPS = [
    *(("create", 0), ("fsync_directory", 0), ("mkdir", 0), ("open", 0)),
    *(("write", skip) for skip in range(5)),
    *(("fdatasync", 0), ("rename", 0), ("fsync_directory", 1)),
]
"""Steps at which a path can fail while a file of 3 batches is written: header, 3 batches, footer, then sealing."""


def check_copies(store, written, count):
    """Check that the file has this number of complete, equal copies, and that the paths hold no other files."""
    record = written.file_record(WRITE_ID)
    assert len(set(written.copies)) == len(written.copies) == count
    for path_id in written.copies:
        verify_file(record, store.by_id[path_id])
    assert len({store.location(record, path_id).read_bytes() for path_id in written.copies}) == 1
    expected = 2 if written.sidecar_length else 1
    assert len(store.left_over()) == expected * count
    return record


def test_a_file_on_three_paths(store, batch):
    batches = [batch(100, seed) for seed in range(3)]
    written = store.write(batches)
    record = check_copies(store, written, 3)
    assert written.failures == ()
    assert pickle.loads(pickle.dumps(written)) == written
    assert len(record.tile_lengths) == len(record.tile_crcs) == 5
    assert (record.length, record.batches, record.write_id) == (sum(record.tile_lengths), 3, WRITE_ID)
    assert pa.ipc.open_file(store.location(record, 0)).read_all() == pa.Table.from_batches(batches)


def test_the_copy_that_is_read_first_stays_in_memory(store, batch):
    if not can_forget(store.base):
        pytest.skip("this file system keeps all in memory")
    record = store.write([batch(20_000)]).file_record(WRITE_ID)
    whole, *others = [cached_bytes(store.location(record, path_id)) for path_id in record.copies]
    assert whole >= record.length
    assert others == [0, 0]
    for path_id in record.copies[1:]:
        store.location(record, path_id).unlink()
    assert len(store.read(record)) == 1
    assert store.reports == []


@pytest.mark.parametrize("count", [INLINE_BATCHES, INLINE_BATCHES + 1, 100])
def test_many_batches_have_a_sidecar(store, batch, count):
    written = store.write([batch(5)] * count)
    record = check_copies(store, written, 3)
    assert bool(record.sidecar_length) == (count > INLINE_BATCHES)
    assert bool(record.tile_lengths) == (count <= INLINE_BATCHES)
    assert record.batches == count


def test_size_grows_to_the_length(store, batch):
    with SegmentFileWriter(FileId("ab-0"), store.paths, Quorum(3, 3, 2)) as writer:
        sizes = [writer.size_bytes]
        for seed in range(3):
            writer.write_batch(batch(10, seed))
            sizes.append(writer.size_bytes)
        written = writer.close()
    assert sizes == sorted(set(sizes))
    assert sizes[-1] < written.length


def test_files_spread_over_the_paths(new_store):
    paths = new_store(4).paths
    starts = [preferred(paths[::-1], FileId(f"{WRITE_ID}-{number}"))[0].path_id for number in range(400)]
    assert all(starts.count(path.path_id) > 60 for path in paths)
    assert preferred(paths, FileId("ab")) == preferred(paths[::-1], FileId("ab"))
    assert preferred([], FileId("ab")) == []


def test_write_quorum_of_more_paths(new_store, batch):
    store = new_store(5)
    for number in range(5):
        written = store.write([batch(3)], "5/2/1", file_id=f"ab-{number}")
        assert len(written.copies) == 2


def test_an_abort_leaves_no_file(store, batch):
    with SegmentFileWriter(FileId("ab-0"), store.paths, Quorum(3, 3, 2)) as writer:
        writer.write_batch(batch(10))
        assert store.left_over()
    assert store.left_over() == []
    writer.abort()
    with pytest.raises(AssertionError, match="closed or aborted"):
        writer.write_batch(batch(10))


def test_a_refused_batch_leaves_the_writer_usable(store, batch):
    with SegmentFileWriter(FileId("ab-0"), store.paths, Quorum(3, 3, 2)) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.write_batch(batch(3).select(["value"]))
        writer.write_batch(batch(3))
        check_copies(store, writer.close(), 3)


def test_a_file_is_written_only_once(store, batch):
    written = store.write([batch(3)])
    with pytest.raises(NotEnoughCopiesError, match="written only once"):
        store.write([batch(4)])
    check_copies(store, written, 3)


@pytest.mark.parametrize(("action", "skip"), STEPS)
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("sidecar", [False, True])
def test_the_next_path_replaces_a_failed_one(new_store, batch, action, skip, error_number, sidecar):
    store = new_store(4)
    bad = preferred(store.paths, FileId(f"{WRITE_ID}-0"))[1]
    files = FailingFiles((bad.directory,), action, skip, error_number)
    batches = [batch(10, seed) for seed in range(INLINE_BATCHES + 1 if sidecar else 3)]
    written = store.write(batches, files=files)

    record = check_copies(store, written, 3)
    assert bad.path_id not in written.copies
    assert [failure.path_id for failure in written.failures] == [bad.path_id]
    assert os.strerror(error_number) in written.failures[0].reason
    assert store.read(record) == batches
    last = max(number for number, (name, _) in enumerate(files.calls) if name == action)
    assert {name for name, _ in files.calls[last + 1 :]} <= {"close", "unlink"}, "a failed path was tried again"


@pytest.mark.parametrize(("action", "skip"), STEPS)
def test_without_a_spare_path_ack_quorum_is_enough(store, batch, action, skip):
    files = FailingFiles((store.paths[2].directory,), action, skip, errno.EIO)
    written = store.write([batch(10)] * 3, files=files)
    check_copies(store, written, 2)
    assert [failure.path_id for failure in written.failures] == [2]


@pytest.mark.parametrize(("action", "skip"), STEPS)
def test_a_write_below_the_ack_quorum_leaves_no_file(store, batch, action, skip):
    for bad in combinations(store.paths, 2):
        files = FailingFiles(tuple(path.directory for path in bad), action, skip, errno.EIO)
        with pytest.raises(NotEnoughCopiesError) as error:
            store.write([batch(10)] * 3, files=files)
        assert store.left_over() == []
        for path in bad:
            assert f"path {path.path_id}: " in str(error.value)
        assert "Input/output error" in str(error.value)
        assert "has 1 good copies and needs 2 (quorum 3/3/2;" in str(error.value)


@pytest.mark.parametrize(("action", "skip"), STEPS)
def test_all_first_paths_may_fail_at_the_start_only(new_store, batch, action, skip):
    """Once no good copy holds the bytes so far, spare paths cannot help."""
    store = new_store(6)
    bad = preferred(store.paths, FileId(f"{WRITE_ID}-0"))[:3]
    files = FailingFiles(tuple(path.directory for path in bad), action, skip, errno.EIO)
    before_the_first_byte = action in ("create", "mkdir", "open") or (action, skip) == ("fsync_directory", 0)
    if before_the_first_byte:
        check_copies(store, store.write([batch(10)] * 3, files=files), 3)
    else:
        with pytest.raises(NotEnoughCopiesError, match="has 0 good copies"):
            store.write([batch(10)] * 3, files=files)
        assert store.left_over() == []


def test_spare_paths_that_fail_too_are_passed_over(new_store, batch):
    store = new_store(6)
    order = preferred(store.paths, FileId(f"{WRITE_ID}-0"))
    bad = (order[0], order[3], order[4])
    files = FailingFiles(tuple(path.directory for path in bad), "fdatasync", 0, errno.EIO)
    written = store.write([batch(10)] * 3, files=files)
    check_copies(store, written, 3)
    assert [failure.path_id for failure in written.failures] == [path.path_id for path in bad]


def test_a_source_that_cannot_be_read_back_is_replaced_too(new_store, batch):
    """Path 0 of the order fails, path 1 cannot be read, path 2 is the source for both spare paths."""
    store = new_store(5)
    order = preferred(store.paths, FileId(f"{WRITE_ID}-0"))
    with SegmentFileWriter(
        FileId(f"{WRITE_ID}-0"),
        store.paths,
        Quorum(3, 3, 2),
        FailingFiles((order[0].directory,), "write", 2, errno.EIO),
    ) as writer:
        writer.write_batch(batch(10, 0))
        # The first good copy rots before it is read back.
        (tmp,) = order[1].directory.glob("segments/*/*.tmp-*")
        while tmp.stat().st_size < writer.size_bytes:
            time.sleep(0.001)
        content = bytearray(tmp.read_bytes())
        content[-9] ^= 1
        tmp.write_bytes(content)
        for seed in (1, 2):
            writer.write_batch(batch(10, seed))
        written = writer.close()
    check_copies(store, written, 3)
    assert [failure.path_id for failure in written.failures] == [order[0].path_id, order[1].path_id]
    assert "bytes differ" in written.failures[1].reason
    assert store.read(written.file_record(WRITE_ID)) == [batch(10, seed) for seed in range(3)]


def test_missing_and_foreign_paths_are_passed_over(new_store, batch):
    store = new_store(5)
    missing, swapped, blocked = store.paths[:3]
    os.rename(missing.directory, store.base / "unmounted")
    os.replace(swapped.directory / IDENTITY_NAME, blocked.directory / IDENTITY_NAME)
    (swapped.directory / IDENTITY_NAME).symlink_to(blocked.directory / IDENTITY_NAME)
    (blocked.directory / "segments").rmdir()
    (blocked.directory / "segments").write_text("a file in place of a directory")
    written = store.write([batch(10)] * 3, "5/4/2")
    assert sorted(written.copies) == [1, 3, 4]
    reasons = {failure.path_id: failure.reason for failure in written.failures}
    assert "mount its disk" in reasons[PathId(0)]
    assert "is path 1 of cluster cluster-1, not path 2" in reasons[PathId(2)]
    (blocked.directory / IDENTITY_NAME).write_bytes(
        (swapped.directory / IDENTITY_NAME).read_bytes().replace(b'"path_id": 1', b'"path_id": 2')
    )
    written = store.write([batch(10)] * 3, "5/5/2", file_id="ab-1")
    assert {failure.path_id for failure in written.failures} == {0, 1, 2}


def test_too_few_paths(new_store):
    store = new_store(1)
    with pytest.raises(NotEnoughCopiesError, match=r"has 1 good copies and needs 2 .*too few are given"):
        SegmentFileWriter(FileId("ab-0"), store.paths, Quorum(3, 3, 2))
    with pytest.raises(NotEnoughCopiesError):
        SegmentFileWriter(FileId("ab-0"), [], Quorum(1, 1, 1))
    assert store.left_over() == []


@pytest.fixture
def mount(tmp_path):
    """Mount small ext4 file systems from loop files."""
    mounted = []

    def mount(name, size_bytes):
        image, directory = tmp_path / f"{name}.img", tmp_path / name
        image.write_bytes(b"")
        os.truncate(image, size_bytes)
        directory.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        done = subprocess.run(["mount", "-o", "loop", image, directory], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a loop file: {done.stderr.strip()}")
        mounted.append(directory)
        return directory

    yield mount
    for directory in mounted:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.root
def test_a_full_disk(new_store, batch, mount):
    full = LocalPath(PathId(0), mount("full", 4 * 1024 * 1024), "cluster-1")
    full.create()
    store = new_store(4)
    store.paths[0] = full
    batches = [batch(2000, seed) for seed in range(40)]
    written = store.write(batches, "4/3/2", file_id="ab-2")
    if 0 not in {failure.path_id for failure in written.failures}:
        written = store.write(batches, "4/4/2", file_id="ab-3")
    assert [failure.path_id for failure in written.failures] == [0]
    assert "No space left" in written.failures[0].reason
    assert sorted(written.copies) == [1, 2, 3]
    assert written.length > 4 * 1024 * 1024
    assert store.read(written.file_record(WRITE_ID)) == batches
    assert list(full.segment_files(0)) == []
    assert full.space().free > 1024 * 1024


@pytest.mark.root
def test_a_disk_that_is_read_only(new_store, batch, mount):
    path = LocalPath(PathId(0), mount("read-only", 4 * 1024 * 1024), "cluster-1")
    path.create()
    store = new_store(3)
    store.paths[0] = path
    first = store.write([batch(10)])
    subprocess.run(["mount", "-o", "remount,ro", path.directory], check=True)
    written = store.write([batch(10)], file_id="ab-1")
    assert [failure.path_id for failure in written.failures] == [0]
    assert "Read-only file system" in written.failures[0].reason
    assert sorted(written.copies) == [1, 2]
    verify_file(first.file_record(WRITE_ID), path)


MEMORY_SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM

def rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

paths = {number: LocalPath(number, Path(sys.argv[1]) / str(number), "c") for number in range(3)}
for path in paths.values():
    path.create()
values = np.random.default_rng(1).bytes(1024 * 1024)
value = pa.array([values[start : start + 1024] for start in range(0, len(values), 1024)], pa.binary())
batch = pa.record_batch(
    [value if field.name == "value" else pa.nulls(1024, field.type) for field in SEGMENT_SCHEMA], schema=SEGMENT_SCHEMA
)
idle = rss_bytes()
with SegmentFileWriter("ab-0", list(paths.values()), DEFAULT_QUORUM) as writer:
    while writer.size_bytes < 256 * 1024 * 1024:
        writer.write_batch(batch)
    written = writer.close()
wrote = rss_bytes()
for one in read_batches(written.file_record("w"), lambda: paths, range(written.batches), None, print):
    assert one.num_rows == 1024
print(written.length, wrote - idle, rss_bytes() - idle)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT, tmp_path], check=True, capture_output=True, text=True)
    length, writing, reading = (int(word) for word in done.stdout.split())
    assert length > 256 * 1024 * 1024
    assert writing < 120 * 1024 * 1024
    assert reading < 120 * 1024 * 1024
