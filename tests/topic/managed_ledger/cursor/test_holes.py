"""Ack sets as clients send them, and holes against plain sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles, ack_set_bits, ack_set_words

ENTRIES = st.sets(st.integers(0, 60), max_size=40)
PARTIAL = st.dictionaries(st.integers(0, 60), st.integers(1, 2**80), max_size=5)


def holes_of(whole: set[int], partial: dict[int, int]) -> AckHoles:
    holes = AckHoles()
    for entry, bits in partial.items():
        assert holes.narrow(1, entry, bits)
    for entry in whole:
        assert holes.add(1, entry)
    return holes


def test_ack_sets_are_signed_words_and_never_reach_beyond_the_batch() -> None:
    assert ack_set_bits([-1], 10) == 0b11_1111_1111
    assert ack_set_bits([-2, 1], 65) == (1 << 65) - 2
    assert ack_set_bits([2**64 - 2, 3], 65) == (1 << 65) - 2
    assert ack_set_bits([], 3) == 0
    assert ack_set_bits([0b1000], 3) == 0
    assert ack_set_words(0) == ()
    assert ack_set_words((1 << 65) - 2) == ((1 << 64) - 2, 1)
    for size in (0, -1, (1 << 20) + 1):
        with pytest.raises(InvalidArgumentError, match="batch"):
            ack_set_bits([1], size)


@given(st.integers(0, 2**200 - 1))
def test_words_and_bits_are_equivalent(bits: int) -> None:
    assert ack_set_bits(ack_set_words(bits), 200) == bits


@given(ENTRIES, PARTIAL, ENTRIES, PARTIAL)
def test_joining_is_union_in_whatever_order(
    whole: set[int], partial: dict[int, int], more: set[int], parts: dict[int, int]
) -> None:
    one, other = holes_of(whole, partial), holes_of(more, parts)
    both = holes_of(whole, partial)
    both.join(other)
    both.join(other)
    other.join(one)
    assert both == other
    for entry in range(61):
        bits = [found[entry] for found in (partial, parts) if entry in found]
        left = bits[0] & bits[-1] if bits else None
        acked = entry in whole | more or left == 0
        assert both.is_acked(1, entry) == acked
        assert both.ack_set(1, entry) == (None if acked else left)
    assert both.count == sum(both.is_acked(1, entry) for entry in range(61))
    assert one == holes_of(whole, partial)


@given(ENTRIES, PARTIAL, st.integers(0, 61), st.integers(0, 61))
def test_runs_of_entries_and_forgotten_ones(whole: set[int], partial: dict[int, int], first: int, end: int) -> None:
    holes = holes_of(whole, partial)
    runs = list(holes.unacked_runs(1, first, end))
    assert [entry for run in runs for entry in range(*run)] == [e for e in range(first, end) if e not in whole]
    assert all(a[1] < b[0] for a, b in pairwise(runs))
    gap = next(entry for entry in range(first, 99) if entry not in whole)
    assert holes.take_run(1, first) == gap
    assert holes == holes_of(whole - set(range(first, gap)), {e: b for e, b in partial.items() if e not in whole})
    holes.drop_before(1, end)
    assert holes == holes_of(
        {e for e in whole if e >= max(end, gap) or (e >= end and e < first)},
        {e: b for e, b in partial.items() if e not in whole and e >= end},
    )
    holes.drop_before(2, 0)
    assert not holes
    assert holes.ledgers == []
