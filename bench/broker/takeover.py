"""How long a topic is not served when its broker is killed, hangs or is stopped, at an official client.

Three brokers of one local root; a producer sends a message every 20 ms to a topic, and a consumer receives them. The
topic's broker is disturbed, and the longest time between two receipts, and between two deliveries, is taken.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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

from tests.kit.broker_cluster import BrokerCluster
from tests.kit.running_broker import RunningBroker

TOPIC: Final = "served"
_SEND_EVERY_S: Final = 0.02
_BEFORE_S: Final = 2.0
_AFTER_S: Final = 3.0
_LIMIT_S: Final = 60.0
Disturb = Callable[[RunningBroker], None]


@dataclass
class Times:
    """The times of receipts and of deliveries, on the monotonic clock."""

    sent: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)

    def is_back(self, since_s: float) -> bool:
        """Return True if both have gone on for a while after a moment."""
        return all(times and times[-1] > since_s + _AFTER_S for times in (self.sent, self.received))


def kill(broker: RunningBroker) -> None:
    """SIGKILL: the broker's lock proves its death."""
    broker.kill()


def hang(broker: RunningBroker) -> None:
    """SIGSTOP: the broker's lease runs out."""
    os.kill(broker.pid, signal.SIGSTOP)


def stop(broker: RunningBroker) -> None:
    """SIGTERM: the broker gives its bundles to the others."""
    os.kill(broker.pid, signal.SIGTERM)


DISTURBANCES: Final[dict[str, Disturb]] = {"killed": kill, "hangs": hang, "stopped": stop}


def measure(root: Path, disturb: Disturb) -> tuple[float, float]:
    """Disturb the topic's broker once; returns the longest pauses of receipts and of deliveries, in seconds."""
    times, ended = Times(), threading.Event()
    with BrokerCluster(root) as cluster:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(cluster.url, logger=quiet)
        consumer = client.subscribe(
            TOPIC, "s", message_listener=lambda consumer, message: _receive(times, consumer, message)
        )
        producer = client.create_producer(TOPIC, send_timeout_millis=0)
        sending = threading.Thread(target=_send, args=(producer, times, ended))
        sending.start()
        time.sleep(_BEFORE_S)
        owner = next(broker for broker in cluster.brokers if broker.url == cluster.url_of(TOPIC))
        began_s = time.monotonic()
        disturb(owner)
        while not times.is_back(began_s) and time.monotonic() < began_s + _LIMIT_S:
            time.sleep(0.1)
        ended.set()
        sending.join()
        consumer.close()
        client.close()
        if disturb is hang:
            os.kill(owner.pid, signal.SIGCONT)
        cluster.forget(owner)
    return _longest_pause(times.sent, began_s), _longest_pause(times.received, began_s)


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
    work: Annotated[Path | None, typer.Option(help="A folder for the roots; by default one that is removed.")] = None,
) -> None:
    """Measure all disturbances, and print a table."""
    table = Table("the topic's broker", "pause of receipts: median, longest (s)", "pause of deliveries (s)")
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for name, disturb in DISTURBANCES.items():
            pauses = [
                measure(Path(folder, f"{name}-{number}"), disturb) for number in track(range(rounds), description=name)
            ]
            columns = [f"{statistics.median(each):.2f}, {max(each):.2f}" for each in zip(*pauses, strict=True)]
            table.add_row(name, *columns)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
