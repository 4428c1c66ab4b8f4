"""Placement of copies: by weight, apart by label, deterministic, and stable when paths are added or removed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.placement import next_apart, preferred


@dataclass(frozen=True)
class At:
    path_id: PathId
    label: str = ""
    weight: int = 1


PLACES = st.lists(
    st.builds(At, st.integers(0, 20).map(PathId), st.sampled_from(["", "a", "b", "c"]), st.integers(0, 10**13)),
    unique_by=lambda place: place.path_id,
    max_size=8,
)


@given(PLACES, st.text(max_size=20), st.randoms())
def test_the_order_has_all_paths_and_depends_on_the_file_only(places, key, random):
    ordered = preferred(places, key)
    assert sorted(ordered, key=lambda place: place.path_id) == sorted(places, key=lambda place: place.path_id)
    shuffled = list(places)
    random.shuffle(shuffled)
    assert preferred(shuffled, key) == ordered


@given(PLACES, st.text(max_size=20))
def test_labels_repeat_only_when_all_are_in_use(places, key):
    ordered = preferred(places, key)
    for count in range(1, len(ordered) + 1):
        used = Counter(place.label for place in ordered[:count] if place.label)
        left = {place.label for place in ordered[count:]}
        if used and max(used.values()) > 1:
            assert "" not in left or max(used.values()) == 1
            assert all(used[label] >= max(used.values()) - 1 for label in left if label)


def test_files_spread_by_free_space():
    places = [At(PathId(0), weight=100), At(PathId(1), weight=300), At(PathId(2), weight=600)]
    first = Counter(preferred(places, f"file-{number}")[0].path_id for number in range(10_000))
    assert [round(first[PathId(each)] / 1000) for each in range(3)] == [1, 3, 6]


def test_an_added_path_takes_its_share_and_moves_nothing_else():
    old = [At(PathId(number)) for number in range(3)]
    new = [*old, At(PathId(3))]
    moved = 0
    for number in range(2_000):
        before, after = preferred(old, str(number))[0], preferred(new, str(number))[0]
        assert after in (before, new[3])
        moved += after != before
    assert 400 < moved < 600


def test_a_spare_comes_from_a_rack_that_is_free():
    spares = [At(PathId(5), "a"), At(PathId(6), "b"), At(PathId(7))]
    assert next_apart(spares, ["a", "c"]).path_id == 6
    assert next_apart(spares, ["a", "b"]).path_id == 7
    assert next_apart(spares[:2], ["a", "a", "b"]).path_id == 6
