"""Bundles of namespaces: which topics they have, and who may change their owners."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata import features
from pulsar_on_spark.metadata.records import (
    BundleOwner,
    BundlesRecord,
    IncarnationRecord,
    NamespaceRecord,
    Record,
    RootRecord,
)
from pulsar_on_spark.metadata.state import MAIN_SCHEMA, State, View, encode
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.bundles import (
    MAX_BUNDLES,
    MAX_HASH,
    Bundle,
    NamespaceBundles,
    bundles_of,
    check_boundaries,
    decide_assign,
    decide_give,
    decide_split,
    effective_owner,
    equal_boundaries,
    topic_hash,
)

NAMESPACE = "public/default"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HASHES: dict[str, int] = json.loads((Path(__file__).parents[2] / "golden" / "bundle_hashes.json").read_text())


def view_of(records: Iterable[Record]) -> View:
    state = State()
    state.apply(encode([(record, False) for record in records], 1, "t", ()).cast(MAIN_SCHEMA))
    return View(state, 1)


def root(owners: dict[int, str] | None = None, states: dict[str, str] | None = None) -> list[Record]:
    """Records of a root with the namespace, four bundles with these owners, and incarnations in these states."""
    boundaries = equal_boundaries(4)
    bundles = [BundleOwner(incarnation=(owners or {}).get(number)) for number in range(4)]
    return [
        RootRecord.model_validate(
            {"cluster_id": "c", "format_version": 2, "created_at": NOW, "features": {}, "quorum": "1/1/1"}
        ),
        NamespaceRecord(namespace=NAMESPACE),
        BundlesRecord(namespace=NAMESPACE, boundaries=boundaries, owners=tuple(bundles)),
        *(
            IncarnationRecord.model_validate({"incarnation": name, "state": state})
            for name, state in (states or {"a": "OPEN", "b": "OPEN"}).items()
        ),
    ]


def applied(view: View, change: Change | None) -> NamespaceBundles:
    assert change is not None
    (record,) = [each for each in change.puts if isinstance(each, BundlesRecord)]
    return NamespaceBundles(record.namespace, record.boundaries, record.owners)


def test_hashes_are_those_of_pulsar() -> None:
    assert {name: topic_hash(TopicName.parse(name)) for name in HASHES} == HASHES


def test_boundaries_are_those_of_pulsar() -> None:
    # Copied from Apache Pulsar 4.2.4: its answer to `GET namespaces/.../bundles` for a namespace with seven bundles.
    assert [f"{boundary:08x}" for boundary in equal_boundaries(7)] == [
        "00000000",
        "24924924",
        "49249248",
        "6db6db6c",
        "92492490",
        "b6db6db4",
        "db6db6d8",
        "ffffffff",
    ]


@pytest.mark.parametrize("count", [0, -1, MAX_BUNDLES + 1])
def test_the_number_of_bundles_is_bounded(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"has 1 to {MAX_BUNDLES} bundles, not {count}"):
        equal_boundaries(count)


@pytest.mark.parametrize("boundaries", [[], [0], [0, 5], [5, MAX_HASH], [0, 9, 9, MAX_HASH], [0, 9, 5, MAX_HASH]])
def test_boundaries_that_leave_topics_out_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="ascend from 0x00000000 to 0xffffffff"):
        check_boundaries(boundaries)


@given(st.integers(1, MAX_BUNDLES), st.text("abc", min_size=1))
def test_each_topic_is_in_exactly_one_bundle(count: int, local: str) -> None:
    name = TopicName.parse(local)
    bundles = bundles_of(view_of([]), name.namespace, count)
    assert [bundle for bundle in bundles if name in bundle] == [bundles.bundle_of(name)]
    assert name not in Bundle("public/other", 0, MAX_HASH)


def test_the_largest_hash_is_in_the_last_bundle() -> None:
    last = Bundle(NAMESPACE, 5, MAX_HASH)
    assert Bundle(NAMESPACE, 0, 5).hash_range == "0x00000000_0x00000005"
    assert str(last) == "public/default/0x00000005_0xffffffff"


def test_a_free_bundle_gets_an_owner_and_the_root_the_feature() -> None:
    view = view_of(root())
    first, second, *_ = bundles_of(view, NAMESPACE, 4)
    change = decide_assign(view, {first: "a", second: "b"}, 4, NOW)
    after = applied(view, change)
    assert [owner.incarnation for owner in after.owners] == ["a", "b", None, None]
    assert [owner.epoch for owner in after.owners] == [1, 1, 0, 0]
    assert change is not None
    assert [each.features for each in change.puts if isinstance(each, RootRecord)] == [{features.BUNDLES: "write"}]
    assert set(change.keys) == {f"bundles/{NAMESPACE}", features.ROOT_KEY}


@pytest.mark.parametrize(("state", "is_free"), [("OPEN", False), ("IN_RECOVERY", False), ("CLOSED", True)])
def test_only_the_end_of_an_owner_frees_its_bundle(state: str, is_free: bool) -> None:
    view = view_of(root({0: "a"}, {"a": state, "b": "OPEN"}))
    bundles = bundles_of(view, NAMESPACE, 4)
    first = next(iter(bundles))
    assert (effective_owner(view, bundles.owner_of(first)) is None) == is_free
    assert (decide_assign(view, {first: "b"}, 4, NOW) is not None) == is_free


@pytest.mark.parametrize("state", ["IN_RECOVERY", "CLOSED"])
def test_an_incarnation_that_is_over_gets_no_bundle(state: str) -> None:
    view = view_of(root({}, {"a": state}))
    assert decide_assign(view, {next(iter(bundles_of(view, NAMESPACE, 4))): "a"}, 4, NOW) is None


def test_bundles_of_a_deleted_namespace_get_no_owner() -> None:
    view = view_of([each for each in root() if not isinstance(each, NamespaceRecord)])
    assert decide_assign(view, {next(iter(bundles_of(view, NAMESPACE, 4))): "a"}, 4, NOW) is None


def test_a_bundle_that_was_split_meanwhile_gets_no_owner() -> None:
    view = view_of(root())
    assert decide_assign(view, {Bundle(NAMESPACE, 0, MAX_HASH): "a"}, 4, NOW) is None


@pytest.mark.parametrize(("to", "owner"), [(None, None), ("b", "b"), ("gone", None)])
def test_only_the_owner_gives_a_bundle_up(to: str | None, owner: str | None) -> None:
    view = view_of(root({0: "a", 1: "b"}))
    first, second, *_ = bundles_of(view, NAMESPACE, 4)
    after = applied(view, decide_give(view, {first: 0, second: 0}, "a", to, 4, NOW))
    assert [each.incarnation for each in after.owners] == [owner, "b", None, None]
    assert after.owners[0].epoch == 1


def test_a_bundle_that_changed_its_owner_meanwhile_is_not_given() -> None:
    view = view_of(root({0: "a"}))
    first = next(iter(bundles_of(view, NAMESPACE, 4)))
    assert decide_give(view, {first: 1}, "a", None, 4, NOW) is None


def test_the_parts_of_a_bundle_that_was_split_meanwhile_are_given() -> None:
    records = root({0: "a", 1: "a"})
    view = view_of(records)
    first, *_ = bundles_of(view, NAMESPACE, 4)
    change = decide_split(view, first, [first.lower + 5], 4)
    assert change is not None
    after = view_of([each for each in records if not isinstance(each, BundlesRecord)] + list(change.puts))
    given = applied(after, decide_give(after, {first: 0}, "a", "b", 4, NOW))
    assert [owner.incarnation for owner in given.owners] == ["b", "b", "a", None, None]


def test_bundles_of_a_deleted_namespace_are_not_split() -> None:
    view = view_of([each for each in root() if not isinstance(each, NamespaceRecord)])
    bundle = next(iter(bundles_of(view, NAMESPACE, 4)))
    with pytest.raises(NamespaceNotFoundError, match="was deleted"):
        decide_split(view, bundle, [5], 4)


def test_both_parts_of_a_split_bundle_keep_the_owner() -> None:
    view = view_of(root({1: "b"}))
    bundle = list(bundles_of(view, NAMESPACE, 4))[1]
    after = applied(view, decide_split(view, bundle, [bundle.lower + 7, bundle.upper, 0], 4))
    assert after.boundaries[:4] == (0, bundle.lower, bundle.lower + 7, bundle.upper)
    assert [owner.incarnation for owner in after.owners] == [None, "b", "b", None, None]
    assert decide_split(view, bundle, [bundle.lower, bundle.upper], 4) is None
    with pytest.raises(InvalidArgumentError, match="has no bundle 0x00000000_0xffffffff"):
        decide_split(view, Bundle(NAMESPACE, 0, MAX_HASH), [5], 4)


def test_the_number_of_bundles_stays_bounded_by_splits() -> None:
    view = view_of([NamespaceRecord(namespace=NAMESPACE)])
    bundle = next(iter(bundles_of(view, NAMESPACE, MAX_BUNDLES)))
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_BUNDLES} bundles"):
        decide_split(view, bundle, [bundle.lower + 1], MAX_BUNDLES)
