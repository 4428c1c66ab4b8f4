"""Commits of brokers whose topics are all in use, by purpose: on a disk, and on an S3 server whose requests wait.

    python -m bench.broker.metadata_rate [--brokers 3] [--topics 1000] [--delay-ms 20]

Each topic has a producer and a subscription; it gets a message at each interval, which is acknowledged. The commits are
counted in the logs of both tables, after a warm-up of the load; their keys show their purpose.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import pulsar
import typer
from rich.console import Console
from rich.table import Table

from bench.metadata import waiting
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.testing.s3_faults import S3Faults
from tests.kit.running_broker import RunningBroker
from tests.kit.s3_server import S3Server, build_server, write_profile

_NAMESPACE: Final = "public/busy"
_CONNECTED_AT_ONCE: Final = 32
"""Topics of a client that are made at the same time: on a store each of them waits for several commits."""
_ENTRY: Final = re.compile(r"(main|cursors)/_delta_log/\d{20}\.json$")
_PURPOSES: Final = (
    ("cursor rows", r"^cursors$"),
    ("subscriptions", r"^(subscription|slots?)/"),
    ("ledgers opened, closed or sealed", r"^(chain|incarnation|ledger)"),
    ("topics", r"^(topic|namespace)/"),
    ("files", r"^(files|write)"),
    ("bundles and brokers", r"^(bundles|broker|root)"),
)


def main(
    brokers: Annotated[int, typer.Option(help="Number of brokers.")] = 3,
    topics: Annotated[int, typer.Option(help="Number of topics of each.")] = 1000,
    every_s: Annotated[float, typer.Option(help="Interval of a topic's messages.")] = 2.0,
    warm_up_s: Annotated[float, typer.Option(help="Seconds of load before commits are counted.")] = 20.0,
    seconds: Annotated[float, typer.Option(help="Seconds in which they are counted.")] = 40.0,
    delay_ms: Annotated[float, typer.Option(help="Wait of each request to the S3 server.")] = 20.0,
    work: Annotated[Path | None, typer.Option(help="Folder of the root on a disk.")] = None,
) -> None:
    """Measure the commits on a disk and on an S3 server, and print a table for each."""
    build_server()
    load = partial(_measure, brokers=brokers, topics=topics, every_s=every_s, warm_up_s=warm_up_s, seconds=seconds)
    with tempfile.TemporaryDirectory(prefix="bench-rate-", dir=work) as folder, ExitStack() as at_end:
        local = Root.create(Path(folder) / "root")
        _show("on a disk", *load(str(local.place)), entries=_entries_on_disk(Path(folder) / "root"))
        (Path(folder) / "s3").mkdir()
        server = at_end.enter_context(S3Server(Path(folder) / "s3"))
        proxy = at_end.enter_context(S3Faults(server.url, waiting(delay_ms)))
        bucket = server.make_bucket()
        profile = Path(folder) / "storage.toml"
        write_profile(profile, bucket, server.options(proxy.url))
        os.environ[FILE_VARIABLE] = str(profile)
        Root.create(f"{bucket}/root")
        measured = load(f"{bucket}/root")
        entries = _entries_on_store(RemoteObjects(f"{bucket}/root", dict(server.options())))
        _show(f"on a store, requests wait {delay_ms:g} ms", *measured, entries=entries)


def _measure(
    place: str, *, brokers: int, topics: int, every_s: float, warm_up_s: float, seconds: float
) -> tuple[float, float, list[float]]:
    """Run the load on a root, whose folder or URL is `place`.

    Returns:
        The begin and the end of the time in which commits count, in seconds since 1970, and the latencies of receipts
        in seconds.
    """
    settings = {"default_number_of_namespace_bundles": 4 * brokers}
    with ExitStack() as at_end:
        running = [at_end.enter_context(RunningBroker(place, settings, command="broker")) for _ in range(brokers)]
        httpx.put(f"{running[0].web_url}/admin/v2/namespaces/{_NAMESPACE}", timeout=60).raise_for_status()
        context = multiprocessing.get_context("spawn")
        told: Any = context.Queue()
        ready, ended = context.Barrier(brokers + 1), context.Event()
        loads = [
            context.Process(
                target=_load, args=(broker.url, f"load-{number}", topics, every_s, ready, ended, told), daemon=True
            )
            for number, broker in enumerate(running)
        ]
        for process in loads:
            process.start()
        ready.wait(600)
        time.sleep(warm_up_s)
        begin_s = time.time()
        time.sleep(seconds)
        end_s = time.time()
        ended.set()
        latencies = [each for _ in loads for each in told.get(timeout=120)]
        for process in loads:
            process.join(60)
            process.kill()
    return begin_s, end_s, latencies


def _load(url: str, name: str, topics: int, every_s: float, ready: Any, ended: Any, told: Any) -> None:
    """Send a message to each topic at each interval, and acknowledge the received messages."""
    client = pulsar.Client(url, operation_timeout_seconds=120, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    names = [f"persistent://{_NAMESPACE}/{name}-{number}" for number in range(topics)]

    def connect(topic: str) -> pulsar.Producer:
        client.subscribe(topic, "s", message_listener=lambda consumer, message: consumer.acknowledge(message))
        return client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)

    with ThreadPoolExecutor(_CONNECTED_AT_ONCE) as threads:
        producers = list(threads.map(connect, names))
    latencies: list[float] = []
    lock = threading.Lock()

    def on_receipt(sent_s: float, result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            with lock:
                latencies.append(time.monotonic() - sent_s)

    ready.wait(600)
    due_s = time.monotonic()
    while not ended.is_set():
        for producer in producers:
            due_s += every_s / topics
            time.sleep(max(0.0, due_s - time.monotonic()))
            producer.send_async(bytes(100), partial(on_receipt, time.monotonic()))
    told.put(latencies[len(latencies) // 3 :])
    client.shutdown()


def _entries_on_disk(root: Path) -> Iterator[tuple[str, str]]:
    for path in (root / "metadata").rglob("*.json"):
        if match := _ENTRY.search(str(path)):
            yield match.group(1), path.read_text()


def _entries_on_store(objects: RemoteObjects) -> Iterator[tuple[str, str]]:
    for found in objects.list_after("metadata"):
        if (match := _ENTRY.search(found.key)) and (fetched := objects.fetch(found.key)) is not None:
            yield match.group(1), fetched.content.decode()


def _purpose(table: str, actions: list[Mapping[str, Any]]) -> str:
    """Return the purpose of a commit to a table, by its keys."""
    keys = ["cursors"] if table == "cursors" else [each["txn"]["appId"] for each in actions if "txn" in each]
    for purpose, pattern in _PURPOSES:
        if any(re.search(pattern, key) for key in keys):
            return purpose
    return f"other: {keys[0].partition('/')[0]}" if keys else "folds"


def _show(
    where: str, begin_s: float, end_s: float, latencies: list[float], *, entries: Iterator[tuple[str, str]]
) -> None:
    counts: Counter[str] = Counter()
    for table, text in entries:
        actions = [json.loads(line) for line in text.splitlines() if line]
        written_s = next(each["commitInfo"]["timestamp"] for each in actions if "commitInfo" in each) / 1000
        if begin_s <= written_s < end_s:
            counts[_purpose(table, actions)] += 1
    rows = Table("commits", "a second", title=f"Brokers with active topics, {where}")
    for purpose, count in counts.most_common():
        rows.add_row(purpose, f"{count / (end_s - begin_s):.2f}")
    rows.add_row("all", f"{counts.total() / (end_s - begin_s):.2f}")
    Console().print(rows)
    cuts = statistics.quantiles(latencies, n=100)
    Console().print(
        f"{len(latencies)} receipts, p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms; load average "
        f"{os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    typer.run(main)
