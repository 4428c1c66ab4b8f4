"""Targets are even, stable, and move as little as possible."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.topic.managed_ledger.subscription.slots import SLOTTED, slots_of, targets

names = st.text(alphabet="abcdefgh", min_size=1, max_size=2)
groups = st.sets(names, min_size=1, max_size=70)


def moved(before: dict[int, str], after: dict[int, str]) -> int:
    return sum(before[slot] != after[slot] for slot in before)


@given(groups, st.dictionaries(st.sampled_from(SLOTTED), names))
def test_every_slot_has_a_live_consumer_and_shares_differ_by_one_at_most(
    live: set[str], owners: dict[int, str]
) -> None:
    target = targets(live, owners)
    assert sorted(target) == list(SLOTTED)
    assert set(target.values()) <= live
    shares = Counter(target.values())
    assert max(shares.values()) - min(shares[name] for name in live) <= 1


@given(groups, st.dictionaries(st.sampled_from(SLOTTED), names))
def test_an_even_assignment_stays_and_as_few_as_possible_move(live: set[str], owners: dict[int, str]) -> None:
    target = targets(live, owners)
    assert targets(live, target) == target
    held = sorted((sum(owner == name for owner in owners.values()) for name in live), reverse=True)
    share, larger = divmod(64, len(live))
    fitting = sum(min(count, share + (rank < larger)) for rank, count in enumerate(held))
    assert sum(owners.get(slot) == name for slot, name in target.items()) == fitting


@given(groups, names)
def test_a_consumer_that_joins_or_leaves_moves_only_its_share(live: set[str], other: str) -> None:
    without, all_of_them = targets(live - {other}, {}), targets(live | {other}, {})
    share = 64 // len(live | {other}) + 1
    assert moved(without, targets(live | {other}, without)) <= share
    kept = {slot: name for slot, name in all_of_them.items() if name != other}
    if live - {other}:
        assert moved(kept, targets(live - {other}, all_of_them)) == 0


@given(groups, st.dictionaries(st.sampled_from(SLOTTED), names))
def test_the_order_of_the_consumers_does_not_matter(live: set[str], owners: dict[int, str]) -> None:
    assert targets(sorted(live), owners) == targets(sorted(live, reverse=True), owners)


def test_slots_by_type() -> None:
    assert [len(slots_of(kind)) for kind in ("Exclusive", "Failover", "Shared", "Key_Shared")] == [1, 1, 64, 64]
    assert targets([], {0: "a"}) == {}
    assert list(targets(["b", "a"], {}).values()) == ["a"] * 32 + ["b"] * 32
