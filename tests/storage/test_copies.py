"""The copies of one file, tried in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import CorruptSegmentError, StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.copies import CopiesInTurn, NoGoodCopyError
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.loss import CopyVerdict


class _Copy:
    def __init__(self, path: LocalPath) -> None:
        self.path_id = path.path_id
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def paths(tmp_path: Path) -> dict[PathId, LocalPath]:
    return {PathId(number): LocalPath(PathId(number), tmp_path / str(number), "c") for number in range(3)}


def test_one_copy_serves_all_reads_until_it_fails(paths: dict[PathId, LocalPath]) -> None:
    opened: list[_Copy] = []

    def open_copy(path: LocalPath) -> _Copy:
        opened.append(_Copy(path))
        return opened[-1]

    copies = CopiesInTurn([PathId(1), PathId(0)], lambda: paths, open_copy)
    assert [copies.read(lambda copy: copy.path_id) for _ in range(3)] == [1, 1, 1]

    def only_from_0(copy: _Copy) -> int:
        if copy.path_id != 0:
            raise CorruptSegmentError("It is damaged.")
        return copy.path_id

    assert copies.read(only_from_0) == 0
    assert [copy.path_id for copy in opened] == [1, 0]
    assert opened[0].is_closed
    assert not opened[1].is_closed
    assert copies.verdict(PathId(1)) is CopyVerdict.DAMAGED
    copies.close()
    assert opened[1].is_closed


def test_an_unknown_path_a_failing_open_and_a_failing_read_are_each_a_problem_of_their_copy(
    paths: dict[PathId, LocalPath],
) -> None:
    def open_copy(path: LocalPath) -> _Copy:
        if path.path_id == 0:
            raise StoragePathError("Path 0 is not mounted.")
        return _Copy(path)

    def fail(copy: _Copy) -> None:
        raise FileNotFoundError("gone")

    copies = CopiesInTurn([PathId(7), PathId(0), PathId(2)], lambda: paths, open_copy)
    with pytest.raises(NoGoodCopyError):
        copies.read(fail)
    assert [copies.verdict(path_id) for path_id in copies.problems] == [
        CopyVerdict.UNREACHABLE,
        CopyVerdict.UNREACHABLE,
        CopyVerdict.GONE,
    ]
    assert copies.summary() is CopyVerdict.UNREACHABLE
    assert copies.in_words() == (
        "[path 7] Storage path 7 is not in the root's metadata: see `pulsarpy storage list`. "
        "[path 0] Path 0 is not mounted. [path 2] gone"
    )
    with pytest.raises(NoGoodCopyError):
        copies.read(fail)


def test_a_path_that_joins_the_root_later_is_found(paths: dict[PathId, LocalPath]) -> None:
    known: dict[PathId, LocalPath] = {}
    copies = CopiesInTurn([PathId(2)], lambda: known, _Copy)
    known.update(paths)
    assert copies.read(lambda copy: copy.path_id) == 2


def test_other_errors_end_the_read_and_keep_the_copy(paths: dict[PathId, LocalPath]) -> None:
    copies = CopiesInTurn([PathId(0), PathId(1)], lambda: paths, _Copy)

    def fail(copy: _Copy) -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        copies.read(fail)
    assert copies.read(lambda copy: copy.path_id) == 0
