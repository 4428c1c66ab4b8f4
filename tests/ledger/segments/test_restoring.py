"""Restoring a copy from all good tiles; stopped at any step, either the old or the new copy is there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.segments.restoring import delete_aside, put_back, restore_copy, set_aside
from pulsar_on_spark.ledger.segments.segment_format import INLINE_BATCHES
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    CorruptSegmentError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import FileId, PathId, WriteId
from pulsar_on_spark.storage.files import OS_FILES
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.testing.failing_files import FailingFiles
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles


@pytest.fixture
def stored(store, batch):
    """Three copies of a file with a sidecar, and its record."""
    written = store.write([batch(5, seed) for seed in range(INLINE_BATCHES + 1)])
    return store, written.file_record(WriteId("w"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_missing_copy_is_restored_with_its_sidecar(stored):
    store, record = stored
    store.paths[1].delete_segment(FileId(record.file_id))
    paced: list[int] = []
    restore_copy(record, [store.paths[0], store.paths[2]], store.paths[1], pace=paced.append)
    verify_file(record, store.paths[1])
    assert sum(paced) == record.length
    assert len(store.left_over()) == 6


def test_a_bad_copy_is_replaced_without_leftovers(stored):
    store, record = stored
    flip(store.location(record, 1), record.length // 2)
    restore_copy(record, [store.paths[0]], store.paths[1])
    verify_file(record, store.paths[1])
    assert len(store.left_over()) == 6


def test_good_tiles_are_put_together_from_copies_that_are_all_bad(stored):
    store, record = stored
    for number, offset in enumerate((10, record.length // 2, record.length - 10)):
        flip(store.location(record, number), offset)
    restore_copy(record, store.paths, store.paths[2])
    verify_file(record, store.paths[2])


def test_a_tile_that_is_bad_everywhere_leaves_the_copy_unchanged(stored):
    store, record = stored
    for number in range(3):
        flip(store.location(record, number), record.length // 2)
    before = {path: (store.base / path).read_bytes() for path in store.left_over()}
    with pytest.raises(CorruptSegmentError, match="cannot be restored") as error:
        restore_copy(record, store.paths, store.paths[2])
    assert not isinstance(error.value, SegmentGoneError)
    assert {path: (store.base / path).read_bytes() for path in store.left_over()} == before


def test_a_target_that_returns_other_bytes_is_no_loss(stored):
    store, record = stored
    store.paths[1].delete_segment(FileId(record.file_id))

    class Rotting:
        def __getattr__(self, name):
            return getattr(OS_FILES, name)

        def write(self, fd, data):
            OS_FILES.write(fd, bytes(data[:-1]) + bytes([data[-1] ^ 1]))

    with pytest.raises(StoragePathError, match=r"that was written to storage path 1 .* is bad"):
        restore_copy(record, [store.paths[0], store.paths[2]], store.paths[1], files=Rotting())


def test_sources_that_cannot_be_read_now_are_no_loss(stored):
    store, record = stored
    flip(store.location(record, 0), record.length // 2)
    sources = tuple(path.directory for path in store.paths[1:])
    for skip in (0, 1, 2):  # the identity file, the sidecar, a tile
        failing = FailingFiles(sources, "read_into", skip, errno.EIO)
        with pytest.raises(CopiesUnreachableError, match="Input/output error"):
            restore_copy(record, store.paths, store.paths[0], files=failing)


def test_a_file_that_is_gone_everywhere_is_gone(stored):
    store, record = stored
    for path in store.paths:
        path.delete_segment(FileId(record.file_id))
    with pytest.raises(SegmentGoneError):
        restore_copy(record, store.paths, store.paths[0])
    assert store.left_over() == []


@pytest.mark.parametrize(
    ("action", "skip"),
    [("create", 0), ("write", 0), ("write", 3), ("fdatasync", 0), ("fdatasync", 1), ("rename", 0), ("rename", 2)],
)
def test_a_failing_target_keeps_its_old_copy_or_none(stored, action, skip):
    store, record = stored
    flip(store.location(record, 1), 10)
    files = FailingFiles((store.paths[1].directory,), action, skip, errno.ENOSPC)
    with pytest.raises(StoragePathError, match="No space left"):
        restore_copy(record, [store.paths[0]], store.paths[1], files=files)
    for number in (0, 2):
        verify_file(record, store.paths[number])
    restore_copy(record, [store.paths[0]], store.paths[1])
    verify_file(record, store.paths[1])


def test_a_foreign_target_gets_no_copy(stored, tmp_path):
    store, record = stored
    foreign = StoragePath(PathId(1), store.paths[0].directory, "cluster-1")
    with pytest.raises(StoragePathError, match="mount the right disk"):
        restore_copy(record, [store.paths[2]], foreign)
    assert len(store.left_over()) == 6


def test_a_copy_that_was_set_aside_is_put_back_or_deleted(stored):
    store, record = stored
    file_id = FileId(record.file_id)
    moved = set_aside(file_id, store.paths[0])
    assert not store.paths[0].segment_file(file_id).exists()
    put_back(moved)
    verify_file(record, store.paths[0])
    delete_aside(set_aside(file_id, store.paths[0]))
    assert len(store.left_over()) == 4
    assert set_aside(file_id, store.paths[0]) == []


@pytest.mark.parametrize("was_there", ["bad", "missing"])
def test_stopped_at_any_step_a_copy_is_complete_unchanged_or_absent(tmp_path, new_store, batch, was_there):
    base = tmp_path / "base"
    store = new_store(base=base)
    record = store.write([batch(5, seed) for seed in range(INLINE_BATCHES + 1)]).file_record(WriteId("w"))
    if was_there == "bad":
        flip(store.location(record, 1), record.length // 2)
    elif was_there == "missing":
        store.paths[1].delete_segment(FileId(record.file_id))
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
    restore_copy(record, [store.paths[0], store.paths[2]], store.paths[1], files=files)
    recording = files.recording(before)
    assert len(recording.steps) > INLINE_BATCHES
    for count in range(len(recording.steps) + 1):
        for crash in Crash:
            recording.materialise(count, crash, base, tmp_path / "after")
            after = StoragePath(PathId(1), tmp_path / "after" / "p1", "cluster-1")
            name = after.segment_file(FileId(record.file_id))
            try:
                verify_file(record, after)
            except StorageError:
                assert count < len(recording.steps), f"acknowledged, and {crash}"
                assert not name.exists() or name.read_bytes() == old
