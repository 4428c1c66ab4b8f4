"""Consumption of a backlog from local segments, and from a cold path on an object store with slow requests.

    python -m bench.cold_read [--messages 400000] [--rounds 5] [--delay-ms 20]

One broker, the official Python client, messages of 1 KiB. The broker is started again before each round, so that it has
no messages in memory. The store is an S3 server (versitygw on loopback) behind a proxy in which requests wait.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import pulsar
import typer
from rich.console import Console
from rich.table import Table

from bench.metadata import waiting
from bench.payload import value_batches
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.testing.s3_faults import S3Faults
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.s3_server import S3Server, build_server, write_profile

_TOPIC: Final = "backlog"
_ENTRIES_ROWS: Final = 50_000
_WAIT_MS: Final = 60_000
_GOALS: Final = (0.5, 0.5)
"""The lowest share of the local rate, and the most seconds until the first message."""


def main(
    count: Annotated[int, typer.Option("--messages", help="Messages of 1 KiB.")] = 400_000,
    rounds: Annotated[int, typer.Option(help="Measurements of each side, after one warm-up round.")] = 5,
    delay_ms: Annotated[float, typer.Option(help="Wait of each request to the store.")] = 20.0,
) -> None:
    """Measure both sides, and print a table."""
    build_server()
    table = Table("messages from", "messages/s, median", "lowest", "highest", "first message, s")
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as folder, ExitStack() as at_end:
        (Path(folder) / "s3").mkdir()
        server = at_end.enter_context(S3Server(Path(folder) / "s3"))
        proxy = at_end.enter_context(S3Faults(server.url, waiting(delay_ms)))
        bucket = server.make_bucket()
        os.environ[FILE_VARIABLE] = str(Path(folder) / "storage.toml")
        write_profile(Path(folder) / "storage.toml", bucket, server.options(proxy.url))
        root = Root.create(Path(folder) / "root")
        storage_paths.add(root, f"{bucket}/cold", "archive", role="cold")
        root.create_topic(_TOPIC)
        for batch in value_batches(count):
            messages.write(root, _TOPIC, batch.column("value").to_pylist())
        local = [_read(root, count) for _ in range(rounds + 1)][1:]
        offload(root, OffloadRequest(TopicName.parse(_TOPIC)))
        offload(root, now=lambda: datetime.now(UTC) + timedelta(hours=5))  # the lag is over
        cold = [_read(root, count) for _ in range(rounds + 1)][1:]
    medians = []
    for name, side in (("local segments", local), (f"a cold path, each request waits {delay_ms:g} ms", cold)):
        rates = [rate for rate, _ in side]
        medians.append(statistics.median(rates))
        first_s = statistics.median(waited_s for _, waited_s in side)
        table.add_row(name, f"{medians[-1]:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}", f"{first_s:.2f}")
    console = Console()
    console.print(table)
    console.print(f"cold / local: {medians[1] / medians[0]:.2f}, goal {_GOALS[0]}; first message: goal {_GOALS[1]} s")


def _read(root: Root, count: int) -> tuple[float, float]:
    """Consume all `count` messages from a new broker; return messages a second, and seconds until the first message."""
    with RunningBroker(root.path) as broker:
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.create_producer("another").close()  # the broker has loaded all modules for topics
        begin_s = time.perf_counter()
        reader = client.create_reader(_TOPIC, pulsar.MessageId.earliest, receiver_queue_size=5_000)
        reader.read_next(_WAIT_MS)
        first_s = time.perf_counter() - begin_s
        for _ in range(count - 1):
            reader.read_next(_WAIT_MS)
        rate = count / (time.perf_counter() - begin_s)
        client.close()
    return rate, first_s


if __name__ == "__main__":
    typer.run(main)
