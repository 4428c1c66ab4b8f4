"""Updates of a topic-list watch for created and deleted topics."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.topics.topic_list_watcher import TopicListWatcher
from pulsar_on_spark.broker.topics.topic_lists import hash_of
from pulsar_on_spark.model.errors import InvalidArgumentError

NAMES = [f"persistent://{place}" for place in ("a/b/x1", "a/b/x2", "a/b/y", "a/c/x1", "a/b/__x", "a/b/x3-partition-0")]
EXPECTED = {"persistent://a/b/x1", "persistent://a/b/x2", "persistent://a/b/x3-partition-0"}


def test_the_pattern_is_for_whole_names_of_the_namespace_without_partitions() -> None:
    for pattern in ("persistent://a/b/x[0-9]", "a/b/x[0-9]", "^persistent://a/b/x[0-9]$"):
        assert set(TopicListWatcher("a/b", pattern).begin(NAMES, "").topics) == EXPECTED
    assert TopicListWatcher("a/b", "a/b/x").begin(NAMES, "").topics == []


@pytest.mark.parametrize("pattern", ["a/b/(?=x).*", "a/b/("])
def test_a_pattern_that_cannot_be_applied_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be watched"):
        TopicListWatcher("a/b", pattern)


def test_only_names_of_its_namespace_are_parsed() -> None:
    """Parsing all names of a root for each watch would block other clients; in this test it would fail."""
    foreign = ["persistent://a/bc/", "non-persistent://a/b/x1", "persistent://a/b2/-partition-0"]
    watcher = TopicListWatcher("a/b", "a/b/x.*")
    assert set(watcher.begin([*NAMES, *foreign], "").topics) == EXPECTED
    assert watcher.change(foreign, ()) is None
    assert TopicListWatcher("pulsar/system", ".*").begin(["persistent://pulsar/system/x"], "").topics == []


def test_a_list_that_is_known_is_not_sent_again() -> None:
    watcher = TopicListWatcher("a/b", "a/b/x.*")
    found = watcher.begin(NAMES, hash_of(EXPECTED))
    assert (found.topics, found.changed) == ([], False)
    assert watcher.change([], ["persistent://a/b/x1"]) is not None, "it counts all the same"


@given(st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=8))
def test_the_changes_applied_in_order_give_the_list(states: list[set[str]]) -> None:
    watcher = TopicListWatcher("a/b", "a/b/x.*")
    known = set(watcher.begin(states[0], "").topics)
    for before, now in pairwise(states):
        change = watcher.change(now - before, before - now)
        if change is not None:
            assert not known & set(change.new)
            assert set(change.deleted) <= known
            known = known - set(change.deleted) | set(change.new)
            assert change.topics_hash == hash_of(known)
        assert known == now & EXPECTED
