"""Crashes at every step of a write, with every possible state of the disk."""

import pytest

from pulsar_on_spark.ledger.segments.segment_format import INLINE_BATCHES
from pulsar_on_spark.ledger.segments.segment_reader import verify_file
from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName, WriteId
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles

FILE_ID = FileId("0123456789abcdef0123456789abcdef-0")


class NoDataSync(RecordingFiles):
    """A writer that forgets to sync its bytes."""

    def fdatasync(self, fd):
        pass


class NoDirectorySync(RecordingFiles):
    """A writer that forgets to sync its names."""

    def fsync_directory(self, path):
        pass


class NoTemporaryName(RecordingFiles):
    """A writer that writes under the final name from the start."""

    def create(self, path):
        return super().create(path.with_name(path.name.partition(".tmp-")[0]))

    def rename(self, source, target):
        pass


def write_and_crash(tmp_path, batches, files):
    """Yield (crash, whether the write was acknowledged, path number, problem of its copy) for every crash."""
    base = tmp_path / "base"
    base.mkdir()
    paths = [LocalPath(PathId(number), base / f"p{number}", "c1") for number in range(3)]
    for path in paths:
        path.create(files)
    start = len(files.recording().steps)
    with SegmentFileWriter(FILE_ID, paths, DEFAULT_QUORUM, files) as writer:
        for batch in batches:
            writer.write_batch(batch)
        record = writer.close().file_record(WriteId("w"))
    recording = files.recording()
    assert len(recording.steps) > start + 3 * len(batches)
    for count in range(start, len(recording.steps) + 1):
        for crash in Crash:
            recording.materialise(count, crash, base, tmp_path / "after")
            for path in paths:
                after = LocalPath(path.path_id, tmp_path / "after" / path.directory.name, "c1")
                acknowledged = count == len(recording.steps)
                yield crash, acknowledged, path.path_id, problem(after, record, acknowledged)


def problem(path, record, acknowledged):
    """Name a copy's problem; None if it is complete, or absent and not acknowledged."""
    if not path.segment_file(SegmentName(FILE_ID)).exists() and not acknowledged:
        return None
    try:
        verify_file(record, path)
    except StorageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("count", [2, INLINE_BATCHES + 1])
def test_a_copy_is_complete_or_absent(tmp_path, batch, count):
    batches = [batch(5, seed) for seed in range(count)]
    outcomes = list(write_and_crash(tmp_path, batches, RecordingFiles(tmp_path / "log")))
    assert [outcome for outcome in outcomes if outcome[3] is not None] == []
    assert sum(acknowledged for _, acknowledged, _, _ in outcomes) == 3 * len(Crash)


@pytest.mark.parametrize(
    ("mutant", "found_by"),
    [
        (NoDataSync, {Crash.DROP_DATA}),
        (NoDirectorySync, {Crash.DROP_NAMES, Crash.DROP_ALL}),
        (NoTemporaryName, {Crash.KEEP_ALL, Crash.TORN, Crash.DROP_DATA}),
    ],
)
def test_a_forgotten_step_is_detected(tmp_path, batch, mutant, found_by):
    outcomes = write_and_crash(tmp_path, [batch(5, seed) for seed in range(2)], mutant(tmp_path / "log"))
    assert found_by <= {crash for crash, _, _, wrong in outcomes if wrong is not None}
