"""Brokers of one root on this host: what two serve together, beside one alone, and how fast one answers lookups.

python -m bench.broker.several [--rounds 3]
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer
from rich.console import Console
from rich.table import Table

from bench.broker.load import Load, Shape
from bench.broker.measures import p99
from bench.broker.rest import rest
from bench.broker.targets import Peer, cpu_s, with_children
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.protocol.commands import BaseCommand, CommandLookupTopic
from pulsar_on_spark.root import Root
from tests.broker.clients.raw import answer, command, connect
from tests.kit.broker_cluster import BrokerCluster

TOPICS: Final = 8
LOOKED_UP: Final = 50
"""Topics that are looked up in turn: most belong to other brokers."""
LOOKUPS_PER_S: Final = 1_000


@contextmanager
def _brokers(work: Path, count: int) -> Iterator[BrokerCluster]:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        root = Root.create(Path(folder) / "root", quorum=Quorum(1, 1, 1))
        assert isinstance(root.place, Path)
        with BrokerCluster(root.place, count=count) as cluster:
            yield cluster


def throughput(load: Load, work: Path, count: int, seconds: float) -> tuple[float, float]:
    """Produce to several topics; returns the messages a second, and the brokers' microseconds of CPU a message."""
    with _brokers(work, count) as cluster:
        rest()
        processes = [process for each in cluster.brokers for process in with_children(psutil.Process(each.pid))]
        before_s = sum(map(cpu_s, processes))
        outcome = load.run(Peer(cluster.url), "topic", Shape(seconds, topics=TOPICS))
        spent_s = sum(map(cpu_s, processes)) - before_s
    return outcome.acked / outcome.seconds, 1e6 * spent_s / outcome.all_acked


async def lookups(url: str, seconds: float) -> list[float]:
    """Look topics up at one broker at a steady rate; returns the milliseconds until each answer."""
    reader, writer = await connect(url)
    asked_s: list[float] = []
    taken_ms: list[float] = []

    async def receive(count: int) -> None:
        while len(taken_ms) < count:
            said = await answer(reader)
            if said.type == BaseCommand.LOOKUP_RESPONSE:
                taken_ms.append(1000 * (time.perf_counter() - asked_s[said.lookupTopicResponse.request_id]))

    count = int(seconds * LOOKUPS_PER_S)
    receiving = asyncio.create_task(receive(count))
    begun_s = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, begun_s + number / LOOKUPS_PER_S - time.perf_counter()))
        body = CommandLookupTopic(topic=f"persistent://public/default/t{number % LOOKED_UP}", request_id=number)
        asked_s.append(time.perf_counter())
        writer.write(command("LOOKUP", lookupTopic=body))
    await receiving
    writer.close()
    return taken_ms


def main(
    rounds: Annotated[int, typer.Option(help="Times that one and two brokers are measured, in turn.")] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 10.0,
    work: Annotated[Path | None, typer.Option(help="A folder for the roots; else one is made and removed.")] = None,
) -> None:
    """Measure both, and print a table."""
    table = Table("", "one broker", "two brokers")
    with tempfile.TemporaryDirectory(dir=work) as folder:
        load = Load(Path(folder))
        for number in range(rounds):
            found = [throughput(load, Path(folder), count, seconds) for count in (1, 2)]
            table.add_row(f"round {number + 1}: messages/s", *(f"{rate:,.0f}" for rate, _ in found))
            table.add_row("CPU of the brokers, µs a message", *(f"{cpu_us:.2f}" for _, cpu_us in found))
        with _brokers(Path(folder), 3) as cluster:
            rest()
            taken_ms = asyncio.run(lookups(cluster.brokers[0].url, seconds))
    Console().print(table)
    times = f"p50 {statistics.median(taken_ms):.2f} ms, p99 {p99(taken_ms):.2f} ms"
    print(f"{LOOKUPS_PER_S:,} lookups a second at one of three brokers: {times}")


if __name__ == "__main__":
    typer.run(main)
