"""Other programs read a history table as it is, with all of its types, after builds, checkpoints and an OPTIMIZE."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pulsar_on_spark.history_table import table as history_tables
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.metadata.log.test_other_readers import by_duckdb

T = TopicName.parse("t")
Rows = list[dict[str, object]]


def by_delta_rs(table: str) -> Rows:
    return DeltaTable(table).to_pyarrow_table().to_pylist()


def by_duckdb_rows(table: str) -> Rows:
    return by_duckdb(table).to_pylist()


def by_polars(table: str) -> Rows:
    return pl.scan_delta(table).collect().to_arrow().to_pylist()


@pytest.mark.parametrize("read", [by_delta_rs, by_duckdb_rows, by_polars])
def test_they_see_each_message_once(root: Root, read: Callable[[str], Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_tables, "_CHECKPOINT_ENTRIES", 3)
    root.create_topic("t", schema="id BIGINT, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>")
    expected = []
    for number in range(6):
        if number == 3:
            root.declare_schema("t", "id BIGINT, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>, note STRING")
        row: dict[str, object] = {"id": number, "tags": ["a", None], "place": {"x": 0.5}, "note": None}
        expected.append(row)
        messages.write(root, "t", [json.dumps(row).encode()], [b"k"])
        build(root, T)
        (folder,) = (root.path / HISTORY).iterdir()
        if number == 4:
            DeltaTable(folder).optimize.compact()
        found = read(str(folder))
        values = sorted(({name: each[name] for name in row if name in each} for each in found), key=lambda it: it["id"])
        assert values == [{name: each[name] for name in values[0]} for each in expected]
        assert {each["__key"] for each in found} == {b"k"}
        assert all(each["__publishTime"] is not None for each in found)
    assert Path(folder, "_delta_log", "_last_checkpoint").exists()


def filtered_by_delta_rs(table: str, sign: str, published_us: int) -> int:
    limit = pa.scalar(published_us, pa.timestamp("us", "UTC"))
    wanted = COMPARE[sign](pc.field("__publishTime"), limit)
    return int(DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted).num_rows)


def filtered_by_duckdb(table: str, sign: str, published_us: int) -> int:
    return by_duckdb(table, where=f"__publishTime {sign} make_timestamptz({published_us})").num_rows


def filtered_by_polars(table: str, sign: str, published_us: int) -> int:
    limit = pl.lit(published_us).cast(pl.Datetime("us", "UTC"))
    return pl.scan_delta(table).filter(COMPARE[sign](pl.col("__publishTime"), limit)).collect().height


COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize("count", [filtered_by_delta_rs, filtered_by_duckdb, filtered_by_polars])
def test_a_wrong_clock_of_a_producer_hides_no_messages_from_filters(
    root: Root, monkeypatch: pytest.MonkeyPatch, count: Callable[[str, str, int], int]
) -> None:
    """Delta has no statistics for times beyond the years 1 to 9999; three files have one each, one has none."""
    now, before, last, after = 1_700_000_000_123, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000
    clocks = [(now, after), (before, now), (now, last), (now + 1, 1 << 50)]
    root.create_topic("t")
    for pair in clocks:
        for clock in pair:
            monkeypatch.setattr(messages, "current_ms", lambda clock=clock: clock)
            messages.write(root, "t", [b"a"])
        build(root, T)
    (folder,) = (root.path / HISTORY).iterdir()
    for limit in (0, now, last):
        for sign, compare in COMPARE.items():
            expected = sum(compare(clock, limit) for pair in clocks for clock in pair)
            assert count(str(folder), sign, 1000 * limit) == expected, (sign, limit)
