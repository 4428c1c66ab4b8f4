import errno
import os
import pickle

import pytest

from pulsar_on_spark.storage.files import OS_FILES, OsFiles, make_directory, read_file, tmp_name, write_file
from pulsar_on_spark.testing.failing_files import FailingFiles


def test_a_file_is_written_whole_and_read_back(tmp_path):
    path = tmp_path / "a"
    write_file(OS_FILES, path, b"one")
    write_file(OS_FILES, path, b"two, longer")
    assert read_file(OS_FILES, path) == b"two, longer"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("action", ["create", "write", "fdatasync", "rename"])
def test_a_failed_write_leaves_the_old_content(tmp_path, action):
    write_file(OS_FILES, tmp_path / "a", b"before")
    with pytest.raises(OSError, match="No space"):
        write_file(FailingFiles((tmp_path,), action, 0, errno.ENOSPC), tmp_path / "a", b"after")
    assert read_file(OS_FILES, tmp_path / "a") == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_short_write_raises_the_error_that_writing_the_rest_meets():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError, match="Resource temporarily unavailable"):
        OS_FILES.write_buffers(writing, [b"x" * 40_000, memoryview(b"y" * 40_000)])
    assert os.read(reading, 80_000) == b"x" * 40_000 + b"y" * 25_536, "a pipe's size"
    for each in (reading, writing):
        os.close(each)


def test_create_refuses_an_existing_name(tmp_path):
    OS_FILES.close(OS_FILES.create(tmp_path / "a"))
    with pytest.raises(FileExistsError):
        OS_FILES.create(tmp_path / "a")


def test_reads_stop_at_the_end(tmp_path):
    write_file(OS_FILES, tmp_path / "a", b"0123456789")
    fd = OS_FILES.open(tmp_path / "a")
    buffer = bytearray(8)
    assert OS_FILES.read_into(fd, 0, memoryview(buffer)) == 8
    assert bytes(buffer) == b"01234567"
    assert OS_FILES.read_into(fd, 6, memoryview(buffer)) == 4
    assert bytes(buffer[:4]) == b"6789"
    assert OS_FILES.read_into(fd, 11, memoryview(buffer)) == 0
    assert OS_FILES.size(fd) == 10
    OS_FILES.close(fd)


def test_directories_are_made_with_their_parents(tmp_path):
    make_directory(OS_FILES, tmp_path / "a" / "b" / "c")
    make_directory(OS_FILES, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_temporary_names_differ(tmp_path):
    assert tmp_name(tmp_path / "a") != tmp_name(tmp_path / "a")
    assert tmp_name(tmp_path / "a").name.startswith("a.tmp-")


def test_os_files_are_picklable():
    assert pickle.loads(pickle.dumps(OS_FILES)) == OsFiles()
