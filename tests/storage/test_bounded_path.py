"""The calls of a path in a directory that hangs end in time, and do no harm when they go on."""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import SegmentGoneError, StoragePathError
from pulsar_on_spark.model.ids import FileId, PathId, SegmentName
from pulsar_on_spark.storage import bounded_path
from pulsar_on_spark.storage.bounded_path import BoundedPath
from pulsar_on_spark.storage.claim import CLAIM_NAME, read_claim, write_claim
from pulsar_on_spark.storage.files import OsFiles
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.local_path import LocalPath
from tests.kit.hanging_path import HangingPath
from tests.kit.open_files import open_files_under
from tests.kit.waiting import wait_until

NAME = SegmentName(FileId("f" * 32 + "-0"))
HANGS = "has not answered for 0.2 s"


@pytest.fixture
def path(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoundedPath:
    monkeypatch.setattr(bounded_path, "ANSWER_WITHIN_S", 0.2)
    made = BoundedPath(LocalPath(PathId(3), memory_path / "cold", "cluster"))
    made.create()
    return made


class HangingFile:
    """Context manager in which opening a segment file hangs: a pipe takes its place."""

    def __init__(self, path: BoundedPath, name: SegmentName) -> None:
        self._pipe = path.path.segment_file(name)

    def __enter__(self) -> HangingFile:
        self._pipe.parent.mkdir(exist_ok=True)
        os.mkfifo(self._pipe)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(os.open(self._pipe, os.O_RDWR))


def written(path: BoundedPath, content: bytes) -> None:
    sink = path.write_segment(NAME)
    sink.write(content)
    with_open = sink.open_written()
    assert with_open.read_into(0, memoryview(bytearray(len(content)))) == len(content)
    with_open.close()
    sink.seal(b"sidecar")
    sink.close()


def test_it_is_the_path_in_the_directory(path: BoundedPath) -> None:
    inner = path.path
    for name in ("path_id", "place", "is_elsewhere", "cluster_id", "label", "weight", "is_given_up"):
        assert getattr(path, name) == getattr(inner, name)
    assert str(path) == str(inner)
    assert pickle.loads(pickle.dumps(path)) == path
    written(path, b"content")
    path.check()
    path.try_write()
    assert path.has_segment(NAME)
    assert path.space().total == inner.space().total
    assert path.measured().weight > 1
    assert list(path.segment_files(0.0)) == list(inner.segment_files(0.0))
    source = path.open_segment(NAME)
    target = bytearray(10)
    source.expect([(0, 7)])
    assert (source.size_bytes(), source.read_into(0, memoryview(target)), source.sidecar()) == (7, 7, b"sidecar")
    assert (source.location, source.group_bytes) == (
        str(inner.segment_file(NAME)),
        inner.open_segment(NAME).group_bytes,
    )
    source.close()
    source.close()
    assert path.delete_segment(NAME) == 2
    with pytest.raises(SegmentGoneError):
        path.open_segment(NAME)
    written(path, b"content")
    assert all(path.delete_stored(stored) for stored in list(path.segment_files(0.0)))
    path.write_segment(NAME).discard()
    assert list(path.segment_files(0.0)) == []
    assert path.hide_identity()
    path.show_identity()
    path.check()


def test_a_call_that_hangs_ends_and_further_ones_fail_at_once(path: BoundedPath) -> None:
    with HangingPath(path.place):
        with pytest.raises(StoragePathError, match=HANGS):
            path.check()
        began_s, threads = time.monotonic(), threading.active_count()
        for _ in range(100):
            with pytest.raises(StoragePathError, match=HANGS):
                path.has_segment(NAME)
        assert path.measured() is path
        assert time.monotonic() - began_s < 0.2
        assert threading.active_count() <= threads
    wait_until(lambda: answers(path), "the path answers")


def answers(path: BoundedPath) -> bool:
    try:
        path.check()
    except StoragePathError:
        return False
    return True


def test_an_identity_that_is_hidden_late_is_shown_again(path: BoundedPath) -> None:
    with HangingPath(path.place), pytest.raises(StoragePathError, match=HANGS):
        path.hide_identity()
    wait_until(lambda: answers(path), "the path answers")
    time.sleep(0.1)
    path.check()


def test_what_is_opened_late_is_closed(path: BoundedPath) -> None:
    written(path, b"content")
    with HangingPath(path.place), pytest.raises(StoragePathError, match=HANGS):
        path.open_segment(NAME)
    wait_until(lambda: answers(path), "the path answers")
    wait_until(lambda: not open_files_under(path.place), "nothing is open")


class SlowFiles(OsFiles):
    """An operating system whose writes and reads wait."""

    go_on = threading.Event()

    def write(self, fd: int, data: bytes) -> None:
        self.go_on.wait()
        super().write(fd, data)

    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        self.go_on.wait()
        return super().read_into(fd, offset, target)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_file_in_use_by_a_call_that_hangs_is_closed_after_it(path: BoundedPath, is_written: bool) -> None:
    """If it were closed before, the call could use a descriptor that belongs to another file by then."""
    written(path, b"content")
    SlowFiles.go_on.set()
    sink = path.write_segment(SegmentName(NAME.file_id, "a" * 32 + "-" + "0" * 8), SlowFiles())
    source = path.open_segment(NAME, SlowFiles())
    SlowFiles.go_on.clear()
    hangs, ends = (sink.write, source.close) if is_written else (source.read_into, sink.discard)
    with pytest.raises(StoragePathError, match=HANGS):
        hangs(*((b"late",) if is_written else (0, memoryview(bytearray(1)))))  # type: ignore[operator]
    ends()
    (sink.discard if is_written else source.close)()
    wait_until(lambda: len(open_files_under(path.place)) == 1, "the other file is closed")
    SlowFiles.go_on.set()
    wait_until(lambda: not open_files_under(path.place), "nothing is open")


def test_a_file_whose_read_hung_is_not_read_again(path: BoundedPath) -> None:
    """Another file may have got its descriptor's number."""
    written(path, b"content")
    SlowFiles.go_on.set()
    source, target = path.open_segment(NAME, SlowFiles()), bytearray(7)
    SlowFiles.go_on.clear()
    with pytest.raises(StoragePathError, match=HANGS):
        source.read_into(0, memoryview(target))
    SlowFiles.go_on.set()
    wait_until(lambda: not open_files_under(path.place), "it is closed")
    wait_until(lambda: answers(path), "the path answers")
    (path.place / "other").write_bytes(b"another file")
    target[:] = bytes(7)
    with open(path.place / "other", "rb"), pytest.raises(StoragePathError, match="is closed"):
        source.read_into(0, memoryview(target))
    assert target == bytes(7)


def test_a_closed_file_is_not_read(path: BoundedPath) -> None:
    written(path, b"content")
    source = path.path.open_segment(NAME)
    source.close()
    source.close()
    with (
        open(path.path.segment_file(NAME), "rb"),
        pytest.raises(StoragePathError, match="Bad file descriptor"),
    ):
        source.read_into(0, memoryview(bytearray(7)))


def test_errors_of_the_directory_are_raised_as_they_are(path: BoundedPath) -> None:
    (path.place / IDENTITY_NAME).unlink()
    with pytest.raises(StoragePathError, match="mount its disk there"):
        path.check()


def test_a_claim_that_hangs_is_out_of_reach(path: BoundedPath) -> None:
    assert write_claim(path, "token", "root", read_claim(path))
    claim = path.place / CLAIM_NAME
    content = claim.read_bytes()
    claim.unlink()
    os.mkfifo(claim)
    try:
        for _ in range(2):
            with pytest.raises(StoragePathError, match=HANGS):
                read_claim(path)
    finally:
        claim.rename(path.place / "pipe")
        claim.write_bytes(content)
        (path.place / "pipe").write_bytes(content)
    wait_until(lambda: has_token(path), "the claim is read")


def has_token(path: BoundedPath) -> bool:
    try:
        return read_claim(path).token == "token"
    except StoragePathError:
        return False


def numbered(number: int) -> SegmentName:
    return SegmentName(FileId(f"{number:032x}-0"))


def test_a_file_that_hangs_holds_up_calls_for_it_only(path: BoundedPath) -> None:
    written(path, b"content")
    with HangingFile(path, numbered(0)):
        for _ in range(3):
            with pytest.raises(StoragePathError, match=rf"{HANGS} \(segment file {numbered(0)}\)"):
                path.open_segment(numbered(0))
            threads = threading.active_count()
            path.check()
            path.open_segment(NAME).close()
            assert threading.active_count() == threads
    wait_until(lambda: not open_files_under(path.place), "nothing is open")


def test_many_files_that_hang_are_a_directory_that_hangs(path: BoundedPath) -> None:
    written(path, b"content")
    files = [HangingFile(path, numbered(number)) for number in range(bounded_path.MAX_HANGING)]
    with ExitStack() as stack:
        for number, file in enumerate(files):
            path.open_segment(NAME).close()
            stack.enter_context(file)
            with pytest.raises(StoragePathError, match=HANGS):
                path.open_segment(numbered(number))
        threads = threading.active_count()
        with pytest.raises(StoragePathError, match=HANGS):
            path.open_segment(NAME)
        assert threading.active_count() == threads
    wait_until(lambda: answers(path), "the path answers")
    path.open_segment(NAME).close()
