"""The steps of a build, and the boundary of a reader."""

from __future__ import annotations

import pytest

from pulsar_on_spark.history_table.boundary import boundary_of
from pulsar_on_spark.history_table.plan import (
    NOT_BUILT,
    Append,
    Complete,
    ContradictionError,
    Progress,
    UpToDate,
    grouped,
    next_step,
)
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


BUILT = Progress(3, at(5, 10), 100, 1000)
AHEAD = Progress(4, at(5, 20), 110, 1100)


def test_a_build_appends_from_where_the_last_one_ended() -> None:
    assert next_step(NOT_BUILT, NOT_BUILT, EARLIEST, at(1, 4)) == Append(NOT_BUILT, EARLIEST, at(1, 4))
    assert next_step(BUILT, BUILT, EARLIEST, at(5, 20)) == Append(BUILT, at(5, 10), at(5, 20))
    assert next_step(BUILT, BUILT, at(5, 10), at(6, 1)) == Append(BUILT, EARLIEST, at(6, 1))


def test_a_build_begins_behind_trimmed_entries() -> None:
    assert next_step(BUILT, BUILT, at(5, 15), at(5, 20)) == Append(BUILT, EARLIEST, at(5, 20))
    assert next_step(BUILT, BUILT, at(6, 0), at(5, 20)) == UpToDate()


def test_a_build_that_died_between_its_commits_is_completed() -> None:
    assert next_step(BUILT, AHEAD, EARLIEST, at(5, 30)) == Complete(AHEAD)


def test_nothing_new_is_nothing_to_do() -> None:
    assert next_step(BUILT, BUILT, EARLIEST, at(5, 10)) == UpToDate()
    assert next_step(NOT_BUILT, NOT_BUILT, EARLIEST, EARLIEST) == UpToDate()


@pytest.mark.parametrize("table", [NOT_BUILT, Progress(5, at(6, 0), 0, 0)])
def test_a_replaced_table_is_found(table: Progress) -> None:
    with pytest.raises(ContradictionError, match=f"generation {table.generation}"):
        next_step(BUILT, table, EARLIEST, at(6, 0))


def test_a_reader_passes_to_the_topic_where_the_table_ends() -> None:
    assert boundary_of(BUILT, BUILT) == at(5, 10)
    assert boundary_of(BUILT, AHEAD) == at(5, 20)
    with pytest.raises(ContradictionError):
        boundary_of(AHEAD, BUILT)


def test_groups_reach_the_limit_and_keep_the_order() -> None:
    assert list(grouped([3, 3, 5, 1, 9, 1], lambda size: size, 6)) == [[3, 3], [5, 1], [9], [1]]
    assert list(grouped([], lambda size: 1, 6)) == []
