from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from pulsar_on_spark.metadata.current import TableName, current, current_sql
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import LedgerRecord, SubscriptionRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError, MetadataError, NotARootError

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def used(root: Path, store: MetadataStore, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Superseded rows, tombstones, records that came back, folded and not folded."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 4)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 4)
    ledgers = [LedgerRecord(topic_id="t", ledger_id=number, created_at=AT) for number in range(4)]
    subscription = SubscriptionRecord(
        topic_id="t", name="s'", type="Exclusive", start_ledger=0, start_entry=0, start_epoch=0, created_at=AT
    )
    store.commit(lambda view: Change(puts=[*ledgers, subscription], keys={"key": None}))
    store.commit(lambda view: Change(deletes=ledgers[1:3], keys={"key": None}))
    for number in range(15):
        put(store, f"n{number % 3}", note=number)
        store.append_cursors([CursorRow("t", "s'", number % 2, number % 3, number, 1, number)])
    store.fold_and_checkpoint()
    store.commit(lambda view: Change(puts=ledgers[1:2], keys={"key": None}))
    store.commit(lambda view: Change(deletes=ledgers[3:], keys={"key": None}))
    return root


def _by_sql(root: Path, table: TableName, kind: str | None) -> pa.Table:
    builder = QueryBuilder().register("t", DeltaTable(str(root / "metadata" / table)))
    return pa.table(builder.execute(current_sql(root, table, kind, source="t")).read_all())


def _sorted(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize(
    ("table", "kind"), [("main", None), ("main", "ledger"), ("main", "no such"), ("main", "it's"), ("cursors", None)]
)
def test_the_table_and_the_sql_agree(used: Path, table: TableName, kind: str | None) -> None:
    rows = current(used, table, kind)
    assert _sorted(rows) == _sorted(_by_sql(used, table, kind).select(rows.column_names))


def test_the_present_rows_are_those_of_the_store(used: Path) -> None:
    store = MetadataStore(used)
    ledgers = current(str(used), "main", "ledger").to_pylist()
    assert sorted(row["id"] for row in ledgers) == [record.record_id for record in store.view().all(LedgerRecord)]
    assert sorted(row["ledger_id"] for row in ledgers) == [0, 1]
    assert {row["kind"] for row in current(used, "main").to_pylist()} == {"root", "ledger", "subscription", "tenant"}
    assert [(row["slot"], row["epoch"], row["n"]) for row in _sorted(current(used, "cursors"))] == [
        (row.slot, row.epoch, row.n) for row in store.cursors().of("t", "s'")
    ]


def test_the_sql_names_the_table_by_its_path(used: Path) -> None:
    assert f"FROM delta.`{used}/metadata/cursors`" in current_sql(used, "cursors")
    assert "delta.`/a``b/metadata/main`" in current_sql("/a`b", "main")


def test_looking_at_a_table_changes_nothing(used: Path) -> None:
    """Not even where an open would set something aside."""
    log = used / "metadata" / "main"
    newest = max((log / "_delta_log").glob("*.json"))
    newest.rename(newest.with_name(f"{int(newest.stem) + 1:020d}.json"))
    before = sorted((path, path.stat().st_mtime_ns) for path in used.rglob("*"))
    with pytest.raises(MetadataError, match="try again"):
        current(used, "main")
    assert sorted((path, path.stat().st_mtime_ns) for path in used.rglob("*")) == before


def test_an_empty_table_is_empty(root: Path) -> None:
    assert current(root, "cursors").num_rows == 0
    assert _by_sql(root, "cursors", None).num_rows == 0


def test_errors_name_the_problem(tmp_path: Path, root: Path) -> None:
    with pytest.raises(NotARootError):
        current(tmp_path, "main")
    with pytest.raises(InvalidArgumentError, match="main or cursors"):
        current(root, "topics")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="no kinds"):
        current_sql(root, "cursors", "topic")
    for path in (root / "metadata" / "main").rglob("*.json"):
        path.write_bytes(b"{")
    with pytest.raises(MetadataError, match="metadata/main is damaged"):
        current(root, "main")
