"""Restoring a copy from all good tiles; stopped at any step, the new copy is whole or absent, the old one as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.segments.restoring import restore_copy
from pulsar_on_spark.ledger.segments.segment_format import INLINE_BATCHES
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptSegmentError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName, WriteId
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.testing.failing_files import FailingFiles
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles


@pytest.fixture
def stored(store, batch):
    """Three copies of a file with a sidecar, and its record."""
    written = store.write([batch(5, seed) for seed in range(INLINE_BATCHES + 1)])
    return store, written.file_record(WriteId("w"))


NEW = f"{'a' * 32}-{'b' * 8}"


def new_name(record: FileRecord) -> SegmentName:
    return SegmentName(FileId(record.file_id), NEW)


def restore(record, sources, target, **options):
    restore_copy(record, sources, target, new_name(record), **options)


def verify(record, path):
    verify_file(record, path, name=new_name(record))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_missing_copy_is_restored_with_its_sidecar(stored):
    store, record = stored
    store.paths[1].delete_segment(SegmentName(FileId(record.file_id)))
    paced: list[int] = []
    restore(record, [store.paths[0], store.paths[2]], store.paths[1], pace=paced.append)
    verify(record, store.paths[1])
    assert sum(paced) == record.length
    assert len(store.left_over()) == 6


def test_a_bad_copy_is_restored_beside_itself(stored):
    store, record = stored
    flip(store.location(record, 1), record.length // 2)
    bad = store.location(record, 1).read_bytes()
    restore(record, [store.paths[0]], store.paths[1])
    verify(record, store.paths[1])
    assert store.location(record, 1).read_bytes() == bad
    assert len(store.left_over()) == 8


def test_good_tiles_are_put_together_from_copies_that_are_all_bad(stored):
    store, record = stored
    for number, offset in enumerate((10, record.length // 2, record.length - 10)):
        flip(store.location(record, number), offset)
    restore(record, store.paths, store.paths[2])
    verify(record, store.paths[2])


def test_a_tile_that_is_bad_everywhere_leaves_the_copy_unchanged(stored):
    store, record = stored
    for number in range(3):
        flip(store.location(record, number), record.length // 2)
    before = {path: (store.base / path).read_bytes() for path in store.left_over()}
    with pytest.raises(CorruptSegmentError, match="cannot be restored") as error:
        restore(record, store.paths, store.paths[2])
    assert not isinstance(error.value, SegmentGoneError)
    assert {path: (store.base / path).read_bytes() for path in store.left_over()} == before


def test_a_target_that_returns_other_bytes_is_no_loss(stored):
    store, record = stored
    store.paths[1].delete_segment(SegmentName(FileId(record.file_id)))

    class Rotting:
        def __getattr__(self, name):
            return getattr(OS_FILES, name)

        def write(self, fd, data):
            OS_FILES.write(fd, bytes(data[:-1]) + bytes([data[-1] ^ 1]))

    with pytest.raises(StoragePathError, match=r"that was written to storage path 1 .* is bad"):
        restore(record, [store.paths[0], store.paths[2]], store.paths[1], files=Rotting())


def test_sources_that_cannot_be_read_now_are_no_loss(stored):
    store, record = stored
    flip(store.location(record, 0), record.length // 2)
    sources = tuple(path.directory for path in store.paths[1:])
    for skip in (0, 1, 2):  # the identity file, the sidecar, a tile
        failing = FailingFiles(sources, "read_into", skip, errno.EIO)
        with pytest.raises(CopiesUnreachableError, match="Input/output error"):
            restore(record, store.paths, store.paths[0], files=failing)


def test_a_source_that_could_not_be_read_once_is_not_judged_by_later_bytes(stored):
    store, record = stored
    for number in (0, 1):
        flip(store.location(record, number), record.length - 10)

    class OnceAway:
        """Cannot read the first tile of copy 1."""

        is_over = False

        def __getattr__(self, name):
            return getattr(OS_FILES, name)

        def read_into(self, fd, offset, target):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if not self.is_over and path == str(store.location(record, 1)) and offset < record.length // 2:
                self.is_over = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return OS_FILES.read_into(fd, offset, target)

    files = OnceAway()
    with pytest.raises(CopiesUnreachableError, match="Input/output error"):
        restore(record, [store.paths[1], store.paths[0]], store.paths[2], files=files)
    assert files.is_over


def test_a_file_that_is_gone_everywhere_is_gone(stored):
    store, record = stored
    for path in store.paths:
        path.delete_segment(SegmentName(FileId(record.file_id)))
    with pytest.raises(SegmentGoneError):
        restore(record, store.paths, store.paths[0])
    assert store.left_over() == []


@pytest.mark.parametrize(
    ("action", "skip"),
    [("create", 0), ("write", 0), ("write", 3), ("fdatasync", 0), ("fdatasync", 1), ("rename", 0), ("rename", 1)],
)
def test_a_failing_target_gets_no_copy(stored, action, skip):
    store, record = stored
    flip(store.location(record, 1), 10)
    files = FailingFiles((store.paths[1].directory,), action, skip, errno.ENOSPC)
    with pytest.raises(StoragePathError, match="No space left"):
        restore(record, [store.paths[0]], store.paths[1], files=files)
    for number in (0, 2):
        verify_file(record, store.paths[number])
    with pytest.raises(SegmentGoneError):
        verify(record, store.paths[1])
    restore(record, [store.paths[0]], store.paths[1])
    verify(record, store.paths[1])


def test_a_foreign_target_gets_no_copy(stored, tmp_path):
    store, record = stored
    foreign = LocalPath(PathId(1), store.paths[0].directory, "cluster-1")
    with pytest.raises(StoragePathError, match="mount the right disk"):
        restore(record, [store.paths[2]], foreign)
    assert len(store.left_over()) == 6


@pytest.mark.parametrize("was_there", ["bad", "missing"])
def test_stopped_at_any_step_the_new_copy_is_complete_or_absent(tmp_path, new_store, batch, was_there):
    base = tmp_path / "base"
    store = new_store(base=base)
    record = store.write([batch(5, seed) for seed in range(INLINE_BATCHES + 1)]).file_record(WriteId("w"))
    if was_there == "bad":
        flip(store.location(record, 1), record.length // 2)
    elif was_there == "missing":
        store.paths[1].delete_segment(SegmentName(FileId(record.file_id)))
    before = tmp_path / "before"
    before.mkdir()
    for path in store.base.rglob("*"):
        copy = before / path.relative_to(base)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    old = store.location(record, 1).read_bytes() if was_there != "missing" else None
    files = RecordingFiles(tmp_path / "log")
    restore(record, [store.paths[0], store.paths[2]], store.paths[1], files=files)
    recording = files.recording(before)
    assert len(recording.steps) > INLINE_BATCHES
    for count in range(len(recording.steps) + 1):
        for crash in Crash:
            recording.materialise(count, crash, base, tmp_path / "after")
            after = LocalPath(PathId(1), tmp_path / "after" / "p1", "cluster-1")
            former = after.segment_file(SegmentName(FileId(record.file_id)))
            assert (former.read_bytes() if former.exists() else None) == old
            try:
                verify(record, after)
            except StorageError:
                assert count < len(recording.steps), f"acknowledged, and {crash}"
                assert not after.segment_file(new_name(record)).exists()
