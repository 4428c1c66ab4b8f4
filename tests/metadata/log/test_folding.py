from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.folding import FoldPlan, Order

ORDER = Order(key=("kind", "id"), rank=("seq", "token"))
CURSORS = Order(key=("topic_id", "subscription", "slot"), rank=("epoch", "n", "seq"))


@dataclass(frozen=True)
class File:
    rows: int
    min_seq: int
    max_seq: int


def _table(rows: list[tuple[str, str, int, str, bool]]) -> pa.Table:
    names = ("kind", "id", "seq", "token", "deleted")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    schema = pa.schema(
        [("kind", "string"), ("id", "string"), ("seq", "int64"), ("token", "string"), ("deleted", "bool")]
    )
    return pa.table(columns, schema=schema)


def test_a_fold_waits_until_it_is_worthwhile_and_spares_the_newest_versions() -> None:
    appends = [File(1, seq, seq) for seq in range(1, 201)]
    assert folding.plan(appends[:127], 127) is None
    assert folding.plan(appends[:128], 128) == FoldPlan(above=-1, up_to=64)
    assert folding.plan(appends, 200) == FoldPlan(above=-1, up_to=136)
    assert folding.plan([], 1000) is None


def test_the_base_is_rewritten_only_when_the_rows_above_it_are_a_quarter() -> None:
    base = File(1000, 1, 500)
    small = [File(1, seq, seq) for seq in range(501, 570)]
    assert folding.plan([*small, base], 700) == FoldPlan(above=500, up_to=636)
    large = [File(4, seq, seq) for seq in range(501, 570)]
    assert folding.plan([*large, base], 700) == FoldPlan(above=-1, up_to=636)
    # A row that lagged so far that its seq lies within the base: only a full fold may touch it.
    assert folding.plan([*small, base, File(1, 499, 499)], 700) == FoldPlan(above=-1, up_to=636)


def test_a_fold_from_the_first_row_is_full() -> None:
    assert FoldPlan(-1, 70).full
    assert not FoldPlan(5, 70).full


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["topic", "file", "of a later version"]),
        st.sampled_from("abcd"),
        st.integers(0, 20),
        st.sampled_from("xyz"),
        st.booleans(),
    ),
    max_size=60,
)


@given(rows=ROWS, above=st.integers(-1, 20), up_to=st.integers(0, 20))
def test_exactly_the_rows_of_the_range_that_are_newest_in_the_snapshot_stay(
    rows: list[tuple[str, str, int, str, bool]], above: int, up_to: int
) -> None:
    snapshot = [row for row in rows if row[2] > above]
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for kind, record_id, seq, token, _ in snapshot:
        newest[kind, record_id] = max(newest.get((kind, record_id), (-1, "")), (seq, token))
    kept = folding.fold(_table(snapshot), FoldPlan(above, up_to), ORDER)
    found = {(row["kind"], row["id"]): (row["seq"], row["token"]) for row in kept.to_pylist()}
    assert len(found) == kept.num_rows
    assert found == {key: rank for key, rank in newest.items() if above < rank[0] <= up_to}


@given(rows=ROWS, up_to=st.integers(0, 20))
def test_folding_again_changes_nothing(rows: list[tuple[str, str, int, str, bool]], up_to: int) -> None:
    plan = FoldPlan(-1, up_to)
    once = folding.fold(_table(rows), plan, ORDER)
    assert folding.fold(once, plan, ORDER).equals(once)


def test_an_empty_snapshot_folds_to_nothing() -> None:
    assert folding.fold(_table([]), FoldPlan(-1, 10), ORDER).num_rows == 0


def test_columns_that_this_version_does_not_know_survive() -> None:
    table = _table([("a", "b", 1, "x", False), ("a", "b", 2, "x", False)]).append_column("later", pa.array(["p", "q"]))
    assert folding.fold(table, FoldPlan(-1, 10), ORDER).column("later").to_pylist() == ["q"]


def _dated(rows: list[tuple[str, str, int, str, bool]], hours: list[int]) -> pa.Table:
    stamps = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in hours]
    return _table(rows).append_column("committed_at", pa.array(stamps, pa.timestamp("us", "UTC")))


@pytest.mark.parametrize(("above", "left"), [(-1, ["c", "d", "e"]), (0, ["a", "c", "d", "e"])])
def test_only_a_full_fold_forgets_and_only_old_tombstones_of_the_kinds_named(above: int, left: list[str]) -> None:
    table = _dated(
        [
            ("file", "a", 1, "x", False),
            ("file", "a", 2, "x", True),
            ("file", "c", 3, "x", True),
            ("file", "d", 4, "x", False),
            ("topic", "e", 5, "x", True),
        ],
        [1, 2, 12, 1, 1],
    )
    before = pa.scalar(datetime(2026, 1, 1, 10, tzinfo=UTC), pa.timestamp("us", "UTC"))
    forgettable = folding.old_tombstones(["file", "segment"], before)
    kept = folding.fold(table, FoldPlan(above, 10), ORDER, forgettable)
    assert kept.column("id").to_pylist() == left


def test_a_tombstone_is_kept_while_older_rows_of_its_record_exist() -> None:
    """Every older row of the record is dropped with it, so that no row comes back."""
    table = _dated([("file", "a", seq, "x", seq == 9) for seq in range(1, 10)], list(range(1, 10)))
    before = pa.scalar(datetime(2026, 1, 2, tzinfo=UTC), pa.timestamp("us", "UTC"))
    forgettable = folding.old_tombstones(["file"], before)
    assert folding.fold(table, FoldPlan(-1, 9), ORDER, forgettable).num_rows == 0
    # Beyond the range: neither forgotten, nor its older rows kept.
    assert folding.fold(table, FoldPlan(-1, 8), ORDER, forgettable).num_rows == 0


def test_cursor_rows_count_by_epoch_then_n_and_go_with_their_subscription() -> None:
    rows = [("t", "s", 0, 2, 1, 7), ("t", "s", 0, 1, 99, 8), ("t", "s", 1, 1, 1, 3), ("t", "gone", 0, 1, 1, 4)]
    names = ("topic_id", "subscription", "slot", "epoch", "n", "seq")
    table = pa.table({name: [row[place] for row in rows] for place, name in enumerate(names)})
    kept = folding.fold(table, FoldPlan(-1, 100), CURSORS, folding.ownerless_cursors({("t", "s")}))
    assert sorted(zip(*(kept.column(name).to_pylist() for name in ("slot", "epoch", "n")), strict=True)) == [
        (0, 2, 1),
        (1, 1, 1),
    ]
    assert folding.fold(table, FoldPlan(0, 100), CURSORS, folding.ownerless_cursors(set())).num_rows == 3
