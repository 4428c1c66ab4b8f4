import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_on_spark.testing.recording_files import Crash, Recording, RecordingFiles, Step


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


def states(recording, base, target, crash):
    """Return the files after each number of steps: names with contents, None for directories."""
    for count in range(len(recording.steps) + 1):
        recording.materialise(count, crash, base, target)
        yield {
            str(path.relative_to(target)): None if path.is_dir() else path.read_bytes() for path in target.rglob("*")
        }


def test_the_states_of_a_write_and_rename(tmp_path, base):
    files = RecordingFiles(tmp_path / "log")
    fd = files.create(base / "a.tmp")
    files.write(fd, b"1234")
    files.write(fd, b"5678")
    files.fdatasync(fd)
    files.close(fd)
    files.rename(base / "a.tmp", base / "a")
    files.fsync_directory(base)
    files.unlink(base / "a")
    assert list(base.iterdir()) == []
    tmp, half, whole = {"a.tmp": b""}, {"a.tmp": b"1234"}, {"a.tmp": b"12345678"}
    done = {"a": b"12345678"}
    expected = {
        Crash.KEEP_ALL: [{}, tmp, half, whole, whole, done, done, {}],
        Crash.TORN: [{}, tmp, {"a.tmp": b"12"}, {"a.tmp": b"123456"}, whole, done, done, {}],
        Crash.DROP_DATA: [{}, tmp, tmp, tmp, whole, done, done, {}],
        Crash.DROP_NAMES: [{}, {}, {}, {}, {}, {}, done, done],
        Crash.DROP_ALL: [{}, {}, {}, {}, {}, {}, done, done],
    }
    for crash, wanted in expected.items():
        assert list(states(files.recording(), base, tmp_path / "after", crash)) == wanted


def test_a_lost_directory_takes_its_files_along(tmp_path, base):
    files = RecordingFiles(tmp_path / "log")
    files.mkdir(base / "d")
    files.close(files.create(base / "d" / "a"))
    files.fsync_directory(base / "d")
    files.fsync_directory(base)
    assert list(states(files.recording(), base, tmp_path / "after", Crash.DROP_NAMES)) == [
        {},
        {},
        {},
        {},
        {"d": None, "d/a": b""},
    ]


def test_threads_and_pickles_share_a_log(tmp_path, base):
    files = RecordingFiles(tmp_path / "log")
    copies = [pickle.loads(pickle.dumps(files)) for _ in range(4)]

    def write(number):
        fd = copies[number].create(base / str(number))
        for _ in range(20):
            copies[number].write(fd, b"x")
        copies[number].close(fd)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(write, range(4)))
    recording = files.recording()
    assert len(recording.steps) == 4 * 21
    recording.materialise(len(recording.steps), Crash.KEEP_ALL, base, tmp_path / "after")
    assert {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()} == {
        str(number): b"x" * 20 for number in range(4)
    }


def test_a_step_that_failed_is_not_recorded(tmp_path, base):
    files = RecordingFiles(tmp_path / "log")
    files.mkdir(base / "a")
    with pytest.raises(FileExistsError):
        files.mkdir(base / "a")
    assert [step.action for step in files.recording().steps] == ["mkdir"]


def test_steps_of_another_version_are_refused(tmp_path, base):
    with pytest.raises(ValueError, match="fallocate"):
        Recording([Step("fallocate", base / "a")]).materialise(1, Crash.KEEP_ALL, base, tmp_path / "after")
