import json
import os
import pickle
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.testing.recording_files import Crash, RecordingFiles


def test_a_new_path_passes_its_check(tmp_path):
    path = LocalPath(PathId(4), tmp_path / "deep" / "p", "c1", label="rack-1")
    path.create()
    path.check()
    path.create()
    assert json.loads((path.directory / IDENTITY_NAME).read_text()) == {
        "format_version": 1,
        "cluster_id": "c1",
        "path_id": 4,
    }
    assert pickle.loads(pickle.dumps(path)) == path
    assert path.space().free > 0


def test_a_fresh_file_system_may_be_a_path(tmp_path):
    (tmp_path / "lost+found").mkdir()
    LocalPath(PathId(0), tmp_path, "c1").create()
    LocalPath(PathId(0), tmp_path, "c1").check()


def test_a_foreign_directory_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StoragePathError, match=r"Storage path 0 .* not empty .*thesis.tex.*give an empty"):
        LocalPath(PathId(0), tmp_path, "c1").create()
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "p").write_text("")
    with pytest.raises(StoragePathError, match=r"Storage path 0 .*p"):
        LocalPath(PathId(0), tmp_path / "p", "c1").create()
    with pytest.raises(StoragePathError, match=r"Storage path 0 .*cannot be read"):
        LocalPath(PathId(0), tmp_path / "p", "c1").check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no pulsarpy-path.json: mount its disk"),
        ("", "cannot be read"),
        ("{}", "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"format_version": 2, "cluster_id": "c1", "path_id": 0}', "format version 2, .* upgrade"),
        ('{"format_version": 1, "cluster_id": "c2", "path_id": 0}', "path 0 of cluster c2, .*mount the right disk"),
        ('{"format_version": 1, "cluster_id": "c1", "path_id": 1}', "path 1 of cluster c1, .*mount the right disk"),
    ],
)
def test_a_path_with_a_foreign_or_broken_identity_is_refused(tmp_path, content, message):
    path = LocalPath(PathId(0), tmp_path / "p", "c1")
    path.create()
    identity = path.directory / IDENTITY_NAME
    identity.unlink()
    if content is not None:
        identity.write_text(content)
    for use in (
        path.check,
        lambda: list(path.segment_files(0)),
        lambda: path.delete_segment(SegmentName(FileId("ab-0"))),
    ):
        with pytest.raises(StoragePathError, match=rf"Storage path 0 \(.*p\).*{message}"):
            use()


def test_a_missing_directory_is_refused(tmp_path):
    path = LocalPath(PathId(0), tmp_path / "p", "c1")
    with pytest.raises(StoragePathError, match="mount its disk"):
        path.check()
    with pytest.raises(StoragePathError, match="cannot be examined"):
        path.space()


@pytest.mark.parametrize("file_id", ["", "a", "../x", "a/b", ".a", "a.b", "a" * 200, "ab\n"])
def test_file_ids_that_are_not_valid_names_are_refused(tmp_path, file_id):
    with pytest.raises(InvalidArgumentError, match="File id"):
        LocalPath(PathId(0), tmp_path, "c1").segment_file(SegmentName(FileId(file_id)))


def test_a_link_that_leads_nowhere_hides_no_other_file(tmp_path):
    path = LocalPath(PathId(0), tmp_path / "p", "c1")
    path.create()
    loop, dangling, good = (SegmentName(FileId(f"abc-{number}")) for number in range(3))
    path.make_segment_directory(good)
    path.segment_file(loop).symlink_to(path.segment_file(loop).name)
    path.segment_file(dangling).symlink_to("nowhere")
    path.segment_file(good).write_bytes(b"12345")
    assert {(stored.name, stored.size_bytes) for stored in path.segment_files(0.0)} == {
        (loop, len(path.segment_file(loop).name)),
        (good, 5),
    }


def test_listing_and_deleting(tmp_path):
    path = LocalPath(PathId(0), tmp_path / "p", "c1")
    path.create()
    for file_id in ("abc-0", "abc-00", "xyz-1"):
        path.make_segment_directory(SegmentName(FileId(file_id)))
        path.segment_file(SegmentName(FileId(file_id))).write_bytes(b"12345")
    path.sidecar_file(SegmentName(FileId("abc-0"))).write_bytes(b"123")
    tmp = path.segment_file(SegmentName(FileId("abc-0"))).with_name("abc-0.arrow.tmp-12ab")
    tmp.write_bytes(b"1")
    (tmp.parent / "note.txt").write_text("not ours")
    now_s = time.time() + 3600

    repaired = SegmentName(FileId("abc-0"), f"{'1' * 32}-{'2' * 8}")
    path.segment_file(repaired).write_bytes(b"1234567")

    listed = {
        (str(f.name), Path(f.location).name, f.size_bytes, f.is_sidecar, f.is_tmp) for f in path.segment_files(now_s)
    }
    assert listed == {
        ("abc-0", "abc-0.arrow", 5, False, False),
        ("abc-0", "abc-0.crc", 3, True, False),
        ("abc-0", "abc-0.arrow.tmp-12ab", 1, False, True),
        ("abc-00", "abc-00.arrow", 5, False, False),
        ("xyz-1", "xyz-1.arrow", 5, False, False),
        (f"abc-0.{repaired.generation}", f"abc-0.{repaired.generation}.arrow", 7, False, False),
    }
    assert repaired in {f.name for f in path.segment_files(now_s)}
    assert repaired.write_id == "1" * 32
    assert SegmentName(FileId("abc-0")).write_id == "abc"
    assert all(3590 < f.age_s < 3700 for f in path.segment_files(now_s))

    for stored in path.segment_files(now_s):
        if stored.name == repaired:
            assert path.delete_stored(stored)
            assert not path.delete_stored(stored)
    assert path.delete_segment(SegmentName(FileId("abc-0"))) == 3
    assert path.delete_segment(SegmentName(FileId("abc-0"))) == 0
    assert sorted(str(f.name) for f in path.segment_files(now_s)) == ["abc-00", "xyz-1"]


@pytest.mark.parametrize("crash", Crash)
def test_an_interrupted_creation_can_be_repeated(tmp_path, crash):
    files = RecordingFiles(tmp_path / "log")
    base = tmp_path / "base"
    base.mkdir()
    LocalPath(PathId(3), base / "p", "c1").create(files)
    recording = files.recording()
    for count in range(len(recording.steps) + 1):
        recording.materialise(count, crash, base, tmp_path / "after")
        path = LocalPath(PathId(3), tmp_path / "after" / "p", "c1")
        if count == len(recording.steps):
            path.check()
        path.create()
        path.check()


def test_an_acknowledged_deletion_is_durable(tmp_path):
    files = RecordingFiles(tmp_path / "log")
    base = tmp_path / "base"
    base.mkdir()
    path = LocalPath(PathId(3), base / "p", "c1")
    path.create(files)
    path.make_segment_directory(SegmentName(FileId("ab-0")), files)
    files.close(files.create(path.segment_file(SegmentName(FileId("ab-0")))))
    files.fsync_directory(path.segment_file(SegmentName(FileId("ab-0"))).parent)
    recording = files.recording()
    after = LocalPath(PathId(3), tmp_path / "after" / "p", "c1")
    recording.materialise(len(recording.steps), Crash.DROP_ALL, base, tmp_path / "after")
    assert after.segment_file(SegmentName(FileId("ab-0"))).exists()
    path.delete_segment(SegmentName(FileId("ab-0")), files)
    recording = files.recording()
    recording.materialise(len(recording.steps), Crash.DROP_ALL, base, tmp_path / "after")
    assert not after.segment_file(SegmentName(FileId("ab-0"))).exists()
