"""Measurement of a peer and of our broker, one after the other, on CPUs that clients and brokers share.

Each measure begins when the CPUs are idle, so deferred work of a measure, such as sealing, does not slow the next one.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.broker.load import Load
from bench.broker.measures import MEASURES, OF_ANY_BROKER, Bench, Figures
from bench.broker.rest import rest
from bench.broker.targets import Peer, Protection, Target, our_broker
from bench.options import chosen
from pulsar_on_spark.model.quorum import Quorum


def main(
    only: Annotated[list[str] | None, typer.Option(help="Run only this measure (may be repeated).")] = None,
    quorum: Annotated[list[str] | None, typer.Option(help="Our broker's quorum (may be repeated).")] = None,
    peer: Annotated[
        str | None, typer.Option(help="URL of another broker on this machine: pulsar://, kafka:// or nats://.")
    ] = None,
    peer_admin: Annotated[
        str, typer.Option(help="URL of a Pulsar's admin API, for partitioned topics.")
    ] = "http://127.0.0.1:18080",
    ours: Annotated[bool, typer.Option(help="Measure ours.")] = True,
    protection: Annotated[
        list[Protection] | None, typer.Option(help="Our broker's protection (may be repeated).")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of a burst and of a latency, after 10 s of warm-up.")] = 30.0,
    sustained: Annotated[float, typer.Option(help="Seconds of sustained produce.")] = 300.0,
    flow_gb: Annotated[float, typer.Option(help="GB that pass through while memory is measured.")] = 10.0,
    topics: Annotated[int, typer.Option(help="Number of topics of the measure `topics`.")] = 1_000,
    topic_rate: Annotated[float, typer.Option(help="Messages a second on each of them.")] = 10.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="Also write the figures here, as they arrive.")] = None,
) -> None:
    """Measure the brokers, and print a table of the figures."""
    known = list(MEASURES) if peer is None or peer.startswith("pulsar") else OF_ANY_BROKER
    wanted = chosen(only, known)
    found: dict[str, Figures] = {}

    def measure(target: Target, bench: Bench) -> None:
        figures = found[target.name] = {}
        for name in wanted:
            rest()
            Console(stderr=True).print(f"{target.name}: {name}")
            figures |= MEASURES[name](target, bench)
            figures[f"load average behind {name}"] = os.getloadavg()[0]
            if as_json is not None:
                as_json.write_text(json.dumps(found, indent=2) + "\n")

    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        work = Path(folder)
        bench = Bench(Load(work), seconds, sustained, flow_gb * 1e9, topics, topic_rate)
        if peer is not None:
            measure(Peer(peer, peer_admin), bench)
        for each in (quorum or ["1/1/1", "3/3/2"]) if ours else []:
            for protected in protection or [Protection.NONE]:
                with our_broker(work, Quorum.parse(each), protected) as broker:
                    measure(broker, bench)
    _show(found)


def _show(found: dict[str, Figures]) -> None:
    table = Table("", title="Broker, messages of 1 KiB")
    for name in found:
        table.add_column(name, justify="right")
    for figure in dict.fromkeys(figure for figures in found.values() for figure in figures):
        values = (figures.get(figure) for figures in found.values())
        table.add_row(figure, *("" if value is None else _number(value) for value in values))
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


if __name__ == "__main__":
    typer.run(main)
