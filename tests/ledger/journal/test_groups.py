"""Groups that fill by runs are those that fill entry by entry."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.groups import EntriesGroup, Filling, JournalLimits
from pulsar_on_spark.model.ids import EntryId, LedgerId

LIMITS = JournalLimits(group_bytes=100, group_entries=5)
ROOM = 1_000_000
runs = st.tuples(
    st.integers(1, 3),
    st.integers(0, 9),
    st.lists(st.sampled_from([0, 1, 20, 99, 100, 101]).map(bytes), min_size=1, max_size=12),
)


def _frames(filling: Filling) -> list[list[bytes]]:
    groups = filling.take_groups()
    assert all(isinstance(group, EntriesGroup) for group in groups)
    return [list(group.encode(ChainPoint(1, 2), -1).buffers) for group in groups]


@settings(max_examples=300)
@given(st.lists(runs, max_size=8))
def test_groups_close_at_the_same_entries(added: list[tuple[int, int, list[bytes]]]) -> None:
    by_run, one_by_one = Filling(LIMITS), Filling(LIMITS)
    ends = dict.fromkeys(range(4), 0)
    for ledger, messages, payloads in added:
        first, at = ends[ledger], 0
        while at < len(payloads):
            fitting = by_run.fitting(payloads[at:], ROOM, ROOM)
            assert fitting > 0
            piece = payloads[at : at + fitting]
            by_run.add_entries(LedgerId(ledger), EntryId(first + at), messages, 1, piece, None)
            at += fitting
        for entry, payload in enumerate(payloads, first):
            one_by_one.add_entries(LedgerId(ledger), EntryId(entry), messages, 1, [payload], None)
        ends[ledger] += len(payloads)
    assert _frames(by_run) == _frames(one_by_one)


@given(
    st.lists(st.sampled_from([0, 1, 20, 99, 100, 101]).map(bytes), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(1, 200),
)
def test_a_run_ends_with_the_entry_that_uses_up_the_room(payloads: list[bytes], entries: int, size_bytes: int) -> None:
    limits = JournalLimits()
    left_entries, left_bytes, fitting = entries, size_bytes, 0
    while fitting < len(payloads) and left_entries > 0 and left_bytes > 0:
        left_entries -= 1
        left_bytes -= len(payloads[fitting])
        fitting += 1
    assert Filling(limits).fitting(payloads, entries, size_bytes) == fitting
