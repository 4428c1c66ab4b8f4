from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.cursors import CursorRow, Cursors

ROWS = st.lists(
    st.builds(
        CursorRow,
        topic_id=st.sampled_from("tu"),
        subscription=st.sampled_from(["s", "r"]),
        slot=st.integers(0, 3),
        epoch=st.integers(0, 3),
        n=st.integers(0, 5),
        ledger=st.just(1),
        entry=st.integers(0, 9),
    ),
    unique_by=lambda row: (row.cursor_key, row.rank),
)


@given(rows=ROWS, order=st.randoms(), cut=st.integers(0, 20))
def test_of_each_slot_the_largest_epoch_then_n_counts_in_whatever_order(
    rows: list[CursorRow], order: object, cut: int
) -> None:
    shuffled = [*rows, *rows]
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    before = Cursors().having(shuffled[:cut])
    seen = before.of("t", "s")
    cursors = before.having(shuffled[cut:])
    for topic_id in "tu":
        for subscription in ("s", "r"):
            of = [row for row in rows if (row.topic_id, row.subscription) == (topic_id, subscription)]
            newest = {row.slot: row for row in sorted(of, key=lambda row: row.rank)}
            assert cursors.of(topic_id, subscription) == tuple(newest[slot] for slot in sorted(newest))
    assert before.of("t", "s") == seen
