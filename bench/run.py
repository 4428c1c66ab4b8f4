"""`make bench`: run the benchmarks, print the table, write JSON, docs/benchmarks.md and its plot."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import batch_read, history, micro_batch, stream_read, task_memory, typed_json, typed_read, write
from bench.harness import Benchmark, Setting, environment, measure
from bench.kafka import Kafka, KafkaMissingError
from bench.options import chosen
from bench.payload import VALUE_SIZE_BYTES, zstd_ratio
from bench.report import print_results, write_markdown, write_plot
from pulsar_on_spark import session_confs, spark_session

HOUSE = Path(__file__).parent.parent
BENCHMARKS: dict[str, Callable[[Setting], Benchmark]] = {
    "batch-read": batch_read.benchmark,
    "stream-read": stream_read.benchmark,
    "write": write.benchmark,
    "micro-batch": micro_batch.benchmark,
    "task-memory": task_memory.benchmark,
    "typed-json": typed_json.benchmark,
    "typed-read": typed_read.benchmark,
    "history-read": history.read_benchmark,
    "history-build": history.build_benchmark,
}


def main(
    only: Annotated[list[str] | None, typer.Option(help="Run only this benchmark (may be repeated).")] = None,
    rows: Annotated[int, typer.Option(help="Rows of 1 KiB in the large data set.")] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="Measurements of each side, after two warm-up rounds.")] = 3,
    work: Annotated[Path, typer.Option(help="Folder for data; 15 GB at full size, kept for the next run.")] = HOUSE
    / "bench-work",
    docs: Annotated[Path, typer.Option(help="Folder for benchmarks.md, .json and .png.")] = HOUSE / "docs",
) -> None:
    """Measure pulsarpy beside Parquet, Delta and Spark's Kafka source."""
    console = Console()
    wanted = chosen(only, BENCHMARKS)
    facts = environment()
    confs = _confs()
    with contextlib.ExitStack() as stack:
        setting = _setting(stack, work.resolve(), rows, confs, console)
        results = [measure(BENCHMARKS[name](setting), rounds, console.print) for name in wanted]
    payload: dict[str, object] = {
        "payload": f"distinct JSON-like values of {VALUE_SIZE_BYTES} bytes, zstd level 1 ratio {zstd_ratio():.2f}",
        "confs": ", ".join(f"{name}={value}" for name, value in confs.items()),
    }
    print_results(results, console)
    document = {"environment": facts, **payload, "rounds": rounds, "benchmarks": [each.as_json() for each in results]}
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "benchmarks.json").write_text(json.dumps(document, indent=1) + "\n")
    write_plot(results, docs / "benchmarks.png")
    write_markdown(results, facts, payload, rounds, docs / "benchmarks.md")
    console.print(f"written: {docs / 'benchmarks.md'}, benchmarks.json, benchmarks.png")


def _setting(stack: contextlib.ExitStack, work: Path, rows: int, confs: dict[str, str], console: Console) -> Setting:
    work.mkdir(parents=True, exist_ok=True)
    kafka: Kafka | None = None
    missing = ""
    try:
        with console.status("starting Kafka (its first start resolves the JARs)"):
            kafka = stack.enter_context(Kafka(work / "kafka"))
    except KafkaMissingError as error:
        missing = str(error)
        console.print(f"Kafka: not run: {missing}")
    jars = {"spark.jars": ",".join(kafka.spark_jars)} if kafka is not None else {}
    spark = spark_session("bench", delta=None, **confs, **jars)
    stack.callback(spark.stop)
    spark.sparkContext.setLogLevel("OFF")
    shutil.rmtree(work / "root", ignore_errors=True)
    return Setting(spark, work, rows, kafka, missing, _pulsarpy_missing())


def _pulsarpy_missing() -> str | None:
    """Return the reason why `format("pulsarpy")` cannot be used; None if it can."""
    import pyspark_pulsarpy

    return None if hasattr(pyspark_pulsarpy, "DefaultSource") else 'format("pulsarpy") is not installed'


def _confs() -> dict[str, str]:
    return {
        **{name: value for name, value in session_confs().items() if "jars" not in name},
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
    }


if __name__ == "__main__":
    typer.run(main)
