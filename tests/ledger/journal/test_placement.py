"""On which storage paths a journal's files are made: apart from each other as far as labels allow."""

from __future__ import annotations

import pytest

from pulsar_on_spark.ledger.journal.log import Copy
from pulsar_on_spark.ledger.journal.placement import Placement
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import Quorum


def offered(*labels: str) -> Placement:
    """Paths 0, 1, ... with these labels, best ones first; three copies, two must be durable."""
    placement = Placement(Quorum(3, 3, 2))
    for number, label in enumerate(labels):
        placement.offer_path(PathId(number), label)
    return placement


def paths(copies: tuple[Copy, ...] | None) -> list[int]:
    assert copies is not None
    return [int(copy.path) for copy in copies]


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        (("", "", "", ""), [0, 1, 2]),
        (("a", "a", "b", "c"), [0, 2, 3]),
        (("a", "a", "b", "b"), [0, 2, 1]),
        (("a", "a", "", ""), [0, 2, 3]),
        (("a", "a", "a", "a"), [0, 1, 2]),
    ],
)
def test_a_new_file_s_copies_are_apart(labels: tuple[str, ...], chosen: list[int]) -> None:
    assert paths(offered(*labels).placed((), (), ())) == chosen


def test_a_lost_copy_goes_where_the_others_are_not() -> None:
    placement = offered("a", "b", "c", "a", "b")
    copies = placement.placed((), (), ())
    assert copies is not None
    placement.fail(PathId(1))
    replaced = placement.placed(copies, {copies[1]}, [copy.path for copy in copies])
    assert paths(replaced) == [0, 4, 2]


def test_the_same_paths_continue_if_their_labels_differ() -> None:
    placement = offered("a", "b", "c", "d")
    assert paths(placement.placed((), (), [PathId(3), PathId(1), PathId(0)])) == [3, 1, 0]


def test_two_copies_under_one_label_separate_when_possible() -> None:
    placement = offered("a", "a", "b")
    copies = placement.placed((), (), ())
    assert sorted(paths(copies)) == [0, 1, 2], "rather two under one label than two copies only"
    placement.offer_path(PathId(3), "c")
    assert sorted(paths(placement.placed((), (), [PathId(0), PathId(1), PathId(2)]))) == [0, 2, 3]


def test_a_returning_path_may_have_another_label() -> None:
    placement = offered("a", "b", "c", "a")
    placement.offer_path(PathId(3), "d")
    placement.fail(PathId(1))
    assert sorted(paths(placement.placed((), (), ()))) == [0, 2, 3]
    assert placement.placed((), (), ()) is not None
