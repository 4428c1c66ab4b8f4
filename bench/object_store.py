"""Spark on an S3 server: a topic beside Parquet by Hadoop's S3A, and beside a minimal reader of the same files.

    python -m bench.object_store [--rows 500000] [--rounds 5] [--delay-ms 0 --delay-ms 20] [--only read]

All sides use one server (versitygw on loopback), one Spark session and the same rows, in turn. With a delay, each
request waits in a proxy, which also counts requests. CPU seconds are those of the JVM and of Spark's Python processes,
without the server and the proxy. Maven resolves S3A into the folder of the work.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, cast

import obstore
import psutil
import pyarrow as pa
import pyarrow.ipc
import typer
from obstore.store import from_url
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench.harness import Benchmark, Goal, Side, measure, ratio, reached, seconds
from bench.metadata import waiting
from bench.payload import VALUE_SIZE_BYTES, write_parquet
from bench.topics import to_noop
from pulsar_on_spark.datasource.session import spark_session
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.segment_names import SEGMENT_SUFFIX
from pulsar_on_spark.testing.s3_faults import S3Faults
from tests.kit.s3_server import S3Server, build_server

_POM: Final = Path(__file__).parent / "peers" / "s3a" / "pom.xml"
_FILES: Final = 2
_TOPIC: Final = "orders"
_THROW_AWAY: Final = "GET and decode"
_READ_GOALS: Final = (
    Goal("read: pulsarpy / Parquet", ratio("pulsarpy", "Parquet"), at_least=0.8),
    Goal(f"read: pulsarpy, value / {_THROW_AWAY}", ratio("pulsarpy, value", _THROW_AWAY), at_least=0.8),
)
_WRITE_GOALS: Final = (Goal("write: pulsarpy / Parquet", ratio("pulsarpy", "Parquet"), at_least=0.7),)


class Kind(StrEnum):
    """The part of the benchmark: writes or reads."""

    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, and the endpoint at which clients reach it.

    Attributes:
        url: The bucket's URL.
        options: Options of the object store by obstore's names.
        delay_ms: The wait of each request in milliseconds.
        proxy: The proxy in which requests wait; None without a delay.
    """

    url: str
    options: Mapping[str, str]
    delay_ms: float
    proxy: S3Faults | None

    @property
    def root(self) -> str:
        """The URL of the root in the bucket."""
        return f"{self.url}/root"

    @property
    def parquet(self) -> str:
        """The URL of the Parquet files in the bucket."""
        return f"{self.url.replace('s3:', 's3a:')}/parquet"

    @property
    def title(self) -> str:
        """The delay of requests in words, for titles of tables."""
        return "no delay" if self.proxy is None else f"each request waits {self.delay_ms:g} ms"


@dataclass(slots=True)
class Costs:
    """CPU seconds and numbers of requests of each run, by the side's name."""

    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    requests: dict[str, list[int]] = field(default_factory=dict)

    def counted(self, name: str, place: Place, rows: int, work: Callable[[], object]) -> float:
        """Run a side's work, store its costs, and return rows a second."""
        before_s, sent = _cpu_s(), _sent(place)
        took_s = seconds(work)
        self.cpu_s.setdefault(name, []).append(_cpu_s() - before_s)
        self.requests.setdefault(name, []).append(_sent(place) - sent)
        return rows / took_s


def main(
    rows: Annotated[int, typer.Option(help="Rows of 1 KiB.")] = 500_000,
    rounds: Annotated[int, typer.Option(help="Measurements of each side, after two warm-up rounds.")] = 5,
    delay_ms: Annotated[list[float], typer.Option(help="Wait of each request; a part for each.")] = [0.0, 20.0],  # noqa: B006
    only: Annotated[Kind | None, typer.Option(help="Measure only writes, or only reads.")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder for the JARs and the data.")] = None,
) -> None:
    """Measure writes and reads, and print tables in Markdown."""
    build_server()
    console = Console(width=160)
    with tempfile.TemporaryDirectory(prefix="bench-objects-", dir=work) as made, ExitStack() as stack:
        folder = Path(made)
        jars = s3a_jars((work or folder).resolve() / "s3a-lib")
        write_parquet(folder / "parquet", rows, -(-rows // _FILES))
        buckets = folder / "s3"
        buckets.mkdir()
        server = stack.enter_context(S3Server(buckets))
        places = [_place(server, delay, stack) for delay in delay_ms]
        _write_profiles(folder / "storage.toml", places)
        spark = spark_session("bench-objects", delta=False, **s3a_confs(jars, places))
        spark.sparkContext.setLogLevel("OFF")
        source = spark.read.schema("key STRING, value BINARY").parquet(str(folder / "parquet")).select("value")
        for place in places:
            if only is not Kind.READ:
                _measure(*_writes(place, source, rows), rows, rounds, place.title, console)
            if only is not Kind.WRITE:
                _to_topic(source, place.root, _TOPIC)
                _to_parquet(source, place)
                _measure(*_reads(spark, place, rows), rows, rounds, place.title, console)
        spark.stop()


def _place(server: S3Server, delay_ms: float, stack: ExitStack) -> Place:
    proxy = stack.enter_context(S3Faults(server.url, waiting(delay_ms))) if delay_ms else None
    return Place(server.make_bucket(), server.options(proxy.url if proxy else ""), delay_ms, proxy)


def _measure(benchmark: Benchmark, costs: Costs, rows: int, rounds: int, title: str, console: Console) -> None:
    result = measure(benchmark, rounds, lambda line: console.print(line, style="dim"))
    gb = rows * VALUE_SIZE_BYTES / 1e9
    load = f"load average {min(result.load_average)} to {max(result.load_average)}"
    table = Table("side", "rows/s", "lowest", "highest", "CPU s/GB", "requests/GB", title=f"{title}, {load}")
    for name, numbers in result.numbers.items():
        spent = statistics.median(costs.cpu_s[name][-rounds:]) / gb
        requests = costs.requests[name][-rounds:]
        asked = f"{statistics.median(requests) / gb:,.0f}" if any(requests) else ""
        rates = (statistics.median(numbers), min(numbers), max(numbers))
        table.add_row(f"{benchmark.name}: {name}", *(f"{rate:,.0f}" for rate in rates), f"{spent:.1f}", asked)
    console.print(table)
    for goal in benchmark.goals:
        console.print(f"{goal.text}: {reached(goal, result.medians()):.2f}, at least {goal.at_least}")


def _writes(place: Place, source: DataFrame, rows: int) -> tuple[Benchmark, Costs]:
    costs, numbers = Costs(), itertools.count()

    def pulsarpy() -> None:
        _to_topic(source, f"{place.url}/written", f"w{next(numbers)}")

    works = {"pulsarpy": pulsarpy, "Parquet": lambda: _to_parquet(source, place)}
    return _benchmark(Kind.WRITE, place, rows, works, _WRITE_GOALS, costs), costs


def _reads(spark: SparkSession, place: Place, rows: int) -> tuple[Benchmark, Costs]:
    def topic(**options: str) -> DataFrame:
        return spark.read.format("pulsarpy").options(topic=_TOPIC, **options).load(place.root)

    thrown_away = _thrown_away(spark, place)
    frames: dict[str, Callable[[], DataFrame]] = {
        "pulsarpy": topic,
        "pulsarpy, value": lambda: topic(columns="value"),
        "Parquet": lambda: spark.read.schema("value BINARY").parquet(place.parquet),
        _THROW_AWAY: lambda: thrown_away,
    }
    for name, frame in frames.items():
        if (found := frame().count()) != rows:
            raise AssertionError(f"{name} read {found:,} rows of {rows:,}")

    def side(frame: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: to_noop(frame())

    costs = Costs()
    works = {name: side(frame) for name, frame in frames.items()}
    return _benchmark(Kind.READ, place, rows, works, _READ_GOALS, costs), costs


def _to_topic(source: DataFrame, root: str, topic: str) -> None:
    source.write.format("pulsarpy").mode("append").option("topic", topic).save(root)


def _to_parquet(source: DataFrame, place: Place) -> None:
    source.write.mode("overwrite").option("compression", "zstd").parquet(place.parquet)


def _benchmark(
    name: str,
    place: Place,
    rows: int,
    works: Mapping[str, Callable[[], object]],
    goals: tuple[Goal, ...],
    costs: Costs,
) -> Benchmark:
    def side(name: str, work: Callable[[], object]) -> Side:
        return Side(name, lambda: costs.counted(name, place, rows, work))

    return Benchmark(name, "rows/s", "", [side(name, work) for name, work in works.items()], goals)


def _thrown_away(spark: SparkSession, place: Place) -> DataFrame:
    """Return a frame that fetches whole segment files, one in each task, and decodes the values without checks."""
    url, options = f"{place.root}/storage/0", dict(place.options)
    field = SEGMENT_SCHEMA.get_field_index("value")
    with_http: Any = {"allow_http": True}

    def opened() -> Any:
        return from_url(url, config=cast(Any, options), client_options=with_http)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store, read = opened(), pa.ipc.IpcReadOptions(included_fields=[field], use_threads=False)
        for number in (number for ids in batches for number in ids.column("id").to_pylist()):
            file = pa.ipc.open_file(pa.py_buffer(obstore.get(store, keys[number]).bytes()), options=read)
            yield from (file.get_batch(batch) for batch in range(file.num_record_batches))

    listed = [each["path"] for page in obstore.list(opened(), "segments") for each in page]
    keys = [key for key in listed if key.endswith(SEGMENT_SUFFIX)]
    return spark.range(0, len(keys), 1, len(keys)).mapInArrow(decode, "value BINARY")


def _cpu_s() -> float:
    """Return the CPU seconds of the JVM and of Spark's Python processes.

    The seconds of workers whose daemon Spark has ended are missing, so use the median of several rounds.
    """
    spent_s = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith(("java", "python")):
                spent_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return spent_s


def _sent(place: Place) -> int:
    return len(place.proxy.outcomes) if place.proxy is not None else 0


def s3a_jars(folder: Path) -> list[str]:
    """Return the JARs of Hadoop's S3A, which Maven resolves into a folder at the first call."""
    if not folder.exists():
        if shutil.which("mvn") is None:
            raise typer.BadParameter("Maven, which resolves Hadoop's S3A, is missing: install it")
        command = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True)
    return [str(jar) for jar in sorted(folder.glob("*.jar"))]


def _write_profiles(file: Path, places: Sequence[Place]) -> None:
    lines = []
    for number, place in enumerate(places):
        lines += [f"[profiles.p{number}]", f'match = "{place.url}"']
        lines += [f'{name} = "{value}"' for name, value in place.options.items()]
    file.write_text("\n".join(lines))
    os.environ[FILE_VARIABLE] = str(file)


def s3a_confs(jars: list[str], places: Sequence[Place]) -> dict[str, str]:
    """Return Spark's confs for S3A with some buckets."""
    confs = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(jars),
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.committer.name": "magic",
        "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
        "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    }
    for place in places:
        bucket = f"spark.hadoop.fs.s3a.bucket.{place.url.removeprefix('s3://')}"
        confs |= {
            f"{bucket}.endpoint": place.options["aws_endpoint"],
            f"{bucket}.endpoint.region": place.options["aws_region"],
            f"{bucket}.access.key": place.options["aws_access_key_id"],
            f"{bucket}.secret.key": place.options["aws_secret_access_key"],
        }
    return confs


if __name__ == "__main__":
    typer.run(main)
