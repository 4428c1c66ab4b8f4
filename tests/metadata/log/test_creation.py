from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_on_spark.metadata.log.creation import check_location, create_table
from pulsar_on_spark.metadata.log.delta_log import DeltaLog
from pulsar_on_spark.metadata.log.log_entry import entry_path, read_entry
from pulsar_on_spark.model.errors import InvalidArgumentError

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("seq", pa.int64(), nullable=False)])


def _refreshed(log: DeltaLog) -> tuple[bool, list[pa.Table]]:
    """Refresh and take in the new rows, as an owner does."""
    news = log.refresh()
    log.taken_in()
    return news


def _log(table: Path) -> DeltaLog:
    log = DeltaLog(table, table.parent / "lock")
    _refreshed(log)
    return log


def _rows(name: str) -> pa.Table:
    return pa.table({"id": [name], "seq": [1]}, schema=SCHEMA)


def _ids(log: DeltaLog) -> list[str]:
    fresh = DeltaLog(log._directory, log._lock_file)
    _, tables = _refreshed(fresh)
    return sorted(name for rows in tables for name in rows.column("id").to_pylist())


@pytest.mark.parametrize(
    "name", ["plain", "with space", "größe 日本", "50%", "a+b&c=d", "x#y?z", "~tilde'quote\"", "{a}"]
)
def test_roots_may_have_such_names(tmp_path: Path, name: str) -> None:
    table = tmp_path / name / "table"
    create_table(table, SCHEMA, tmp_path / "lock")
    log = _log(table)
    log.append(_rows("a"), {"key": 1}, "tok")
    log.checkpoint()
    assert _ids(log) == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {name, "lock"}


@pytest.mark.parametrize("name", ["a%20b", "[x]", "a\\b", "a|b", "a^b", "tab\t"])
def test_roots_may_not_have_such_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Delta library"):
        check_location(Path("/data") / name)


def test_a_creation_interrupted_by_a_power_cut_is_completed(tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    create_table(table, SCHEMA, tmp_path / "lock")
    entry_path(table, 0).write_bytes(b"")
    create_table(table, SCHEMA, tmp_path / "lock")
    log = _log(table)
    log.append(_rows("a"), {}, "tok")
    create_table(table, SCHEMA, tmp_path / "lock")
    assert _ids(log) == ["a"]
    log.checkpoint()
    entry_path(table, 0).unlink()
    create_table(table, SCHEMA, tmp_path / "lock")
    assert _ids(log) == ["a"]
    assert read_entry(table, 0) is None
