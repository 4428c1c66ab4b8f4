"""The time for which a topic is not served when its broker is killed, hangs or is stopped, at an official client.

There are three brokers of one root, or of a Pulsar. A producer sends a message to a topic every 20 ms, and a consumer
receives it. The topic's broker is disturbed and started again; the results are the longest times between two receipts
and two deliveries.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import pulsar
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.broker.pulsar_cluster import PulsarBroker, PulsarCluster
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.running_broker import RunningBroker
from tests.kit.s3_server import S3Server, build_server, write_profile

TOPIC: Final = "served"
_SEND_EVERY_S: Final = 0.02
_BEFORE_S: Final = 2.0
_AFTER_S: Final = 3.0
_LIMIT_S: Final = 60.0
Broker = RunningBroker | PulsarBroker
Cluster = BrokerCluster | PulsarCluster
Disturb = Callable[[Broker], None]


@dataclass
class Times:
    """The times of receipts (`sent`) and of deliveries (`received`), in seconds of the monotonic clock."""

    sent: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)

    def is_back(self, since_s: float) -> bool:
        """Return True if there were both receipts and deliveries for a while after `since_s`."""
        return all(times and times[-1] > since_s + _AFTER_S for times in (self.sent, self.received))


def kill(broker: Broker) -> None:
    """Kill a broker by SIGKILL: its released lock proves its death."""
    broker.kill()


def hang(broker: Broker) -> None:
    """Suspend a broker by SIGSTOP: its lease expires."""
    os.kill(broker.pid, signal.SIGSTOP)


def stop(broker: Broker) -> None:
    """Stop a broker by SIGTERM: it gives its bundles to the others."""
    os.kill(broker.pid, signal.SIGTERM)


DISTURBANCES: Final[dict[str, Disturb]] = {"killed": kill, "hangs": hang, "stopped": stop}


@contextmanager
def brokers_of(place: str, work: Path | None) -> Iterator[Cluster]:
    """Yield three running brokers.

    Args:
        place: "disk" for a new root in a folder, "store" for one on an S3 server, "pulsar" for Pulsar's brokers.
        work: The folder for new folders; of Pulsar the folder itself, because its JARs stay there.
    """
    with ExitStack() as at_end:
        if place == "pulsar" and work is not None:
            yield at_end.enter_context(PulsarCluster(work))
            return
        folder = Path(at_end.enter_context(tempfile.TemporaryDirectory(dir=work)))
        match place:
            case "pulsar":
                yield at_end.enter_context(PulsarCluster(folder))
            case "disk":
                yield at_end.enter_context(BrokerCluster(folder / "root"))
            case _:
                yield at_end.enter_context(BrokerCluster(_root_on_store(folder, at_end)))


def _root_on_store(folder: Path, at_end: ExitStack) -> str:
    """Start an S3 server with its data in a folder, and return the URL of a new root on it."""
    build_server()
    buckets = folder / "buckets"
    buckets.mkdir()
    server = at_end.enter_context(S3Server(buckets))
    url, profile = f"{server.make_bucket()}/root", folder / "profile.toml"
    write_profile(profile, url, server.options())
    os.environ[FILE_VARIABLE] = str(profile)
    Root.create(url)
    return url


def measure(cluster: Cluster, disturb: Disturb, rounds: int, name: str) -> Iterator[tuple[float, float]]:
    """Disturb the topic's broker `rounds` times; yields the longest pauses of receipts and of deliveries in seconds."""
    times, ended = Times(), threading.Event()
    without_log = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)  # it would go through the progress bar
    client = pulsar.Client(cluster.url, logger=without_log)
    consumer = client.subscribe(
        TOPIC, "s", message_listener=lambda consumer, message: _receive(times, consumer, message)
    )
    producer = client.create_producer(TOPIC, send_timeout_millis=0)
    sending = threading.Thread(target=_send, args=(producer, times, ended))
    sending.start()
    for _ in track(range(rounds), description=name):
        time.sleep(_BEFORE_S)
        owner = next(broker for broker in cluster.brokers if broker.url == cluster.url_of(TOPIC))
        began_s = time.monotonic()
        disturb(owner)
        while not times.is_back(began_s) and time.monotonic() < began_s + _LIMIT_S:
            time.sleep(0.1)
        pauses = _longest_pause(times.sent, began_s), _longest_pause(times.received, began_s)
        print(f"{name}: receipts {pauses[0]:.2f} s, deliveries {pauses[1]:.2f} s", flush=True)
        yield pauses
        if disturb is hang:
            os.kill(owner.pid, signal.SIGCONT)
        cluster.replace(owner.url)
    ended.set()
    sending.join()
    consumer.close()
    client.close()


def _send(producer: pulsar.Producer, times: Times, ended: threading.Event) -> None:
    while not ended.wait(_SEND_EVERY_S):
        producer.send_async(b"x" * 100, partial(_on_receipt, times))
    producer.flush()


def _on_receipt(times: Times, result: pulsar.Result, _: pulsar.MessageId) -> None:
    if result == pulsar.Result.Ok:
        times.sent.append(time.monotonic())


def _receive(times: Times, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    times.received.append(time.monotonic())
    consumer.acknowledge(message)


def _longest_pause(times: Sequence[float], since_s: float) -> float:
    after = [moment for moment in times if moment > since_s - _SEND_EVERY_S * 5]
    return max((late - early for early, late in pairwise(after)), default=_LIMIT_S)


def main(
    rounds: Annotated[int, typer.Option(help="Times that each disturbance is measured.")] = 5,
    place: Annotated[str, typer.Option(help="`disk`, `store` for a root on an S3 server, or `pulsar`.")] = "disk",
    only: Annotated[str, typer.Option(help=f"One disturbance only: {', '.join(DISTURBANCES)}.")] = "",
    work: Annotated[
        Path | None, typer.Option(help="A folder for roots, or for Pulsar; else one is made and removed.")
    ] = None,
) -> None:
    """Measure all disturbances, and print a table."""
    table = Table("the topic's broker", "pause of receipts: median, longest (s)", "pause of deliveries (s)")
    for name, disturb in DISTURBANCES.items():
        if only in ("", name):
            with brokers_of(place, work) as cluster:
                pauses = list(measure(cluster, disturb, rounds, name))
            columns = [f"{statistics.median(each):.2f}, {max(each):.2f}" for each in zip(*pauses, strict=True)]
            table.add_row(name, *columns)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
