"""`pulsarpy perf produce` and `perf consume`: throughput and latency of a broker.

The options are those of `pulsar-perf`.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, Topic
from pulsar_on_spark.cli.extras import missing
from pulsar_on_spark.cli.pace import Pace
from pulsar_on_spark.cli.pulsar_client import (
    ServiceUrl,
    SubscriptionPosition,
    SubscriptionType,
    service_client,
)
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

perf_app = typer.Typer(help="Measure a broker's throughput and latency.", no_args_is_help=True)

_PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MAX_LATENCY_US: Final = 600_000_000
_CALLBACKS_S: Final = 10.0
"""Time limit of the wait for the last receipts, in seconds."""
_SECONDS: Final = 10.0

Duration = Annotated[
    float | None,
    typer.Option(
        "--test-duration",
        "--seconds",
        "-time",
        min=0,
        help="Duration in seconds [10; no limit if -m is given]; 0 until Ctrl-C.",
        show_default=False,
    ),
]
NumMessages = Annotated[
    int, typer.Option("--num-messages", "-m", min=0, help="Stop after this number of messages; 0 for no limit.")
]
Interval = Annotated[
    float, typer.Option("--stats-interval-seconds", "-i", min=0, help="Seconds between printed rates; 0 for never.")
]


@dataclass(slots=True)
class Measured:
    """Counts of the successful and failed messages of a command.

    Attributes:
        latencies: HdrHistogram of the latencies in microseconds.
        messages: Number of successful messages.
        bytes: Total size of the values of these messages.
        failed: Number of failed messages.
        reason: The reason of the first failure; "" without one.
        lock: Guards the counts, which several threads change.
    """

    latencies: Any
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    reason: str = ""
    lock: Lock = field(default_factory=Lock)

    def add(self, latency_us: int, size_bytes: int) -> None:
        """Count a successful message, with its latency in microseconds and its size in bytes."""
        with self.lock:
            self.latencies.record_value(min(max(latency_us, 1), _MAX_LATENCY_US))
            self.messages += 1
            self.bytes += size_bytes

    def fail(self, reason: object) -> None:
        """Count a failed message, and keep the first reason."""
        with self.lock:
            self.failed += 1
            self.reason = self.reason or str(reason)


@perf_app.command("produce")
def produce(
    topic: Topic,
    seconds: Duration = None,
    num_messages: NumMessages = 0,
    size: Annotated[int, typer.Option("--size", "-s", min=1, max=5 << 20, help="Bytes of a message.")] = 1024,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0 for no limit.")] = 0,
    producers: Annotated[int, typer.Option("--num-producers", "-n", min=1, max=1000, help="Producers of a topic.")] = 1,
    topics: Annotated[
        int, typer.Option("--num-topics", "-t", min=1, max=1000, help="Topics; several are TOPIC-0, TOPIC-1, ...")
    ] = 1,
    outstanding: Annotated[
        int, typer.Option("--max-outstanding", "-o", min=1, help="Limit of a producer's messages without a receipt.")
    ] = 1000,
    batching: Annotated[
        bool, typer.Option("--batching/--disable-batching", " /-db", help="Send several messages as one entry.")
    ] = True,
    batch_ms: Annotated[
        float, typer.Option("--batch-time-window", "-b", min=1, help="Milliseconds for which a batch collects.")
    ] = 1,
    send_timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Time after which a message without receipt fails.")
    ] = 30,
    every: Interval = 1,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages; latency is measured from the call (with --rate, from its due time) to the receipt."""
    measured = _measured()
    payload = bytes(index % 251 for index in range(size))

    def receipt(sent_ns: int) -> Callable[[Any, Any], None]:
        def took(result: Any, _: Any) -> None:
            if result.value:
                measured.fail(result)
            else:
                measured.add((time.perf_counter_ns() - sent_ns) // 1000, size)

        return took

    with service_client(url) as client:
        import pulsar

        made = [
            client.create_producer(
                topic if topics == 1 else f"{topic}-{number}",
                batching_enabled=batching,
                batching_max_publish_delay_ms=int(batch_ms),
                block_if_queue_full=True,
                max_pending_messages=outstanding,
                send_timeout_millis=int(send_timeout * 1000),
            )
            for number in range(topics)
            for _ in range(producers)
        ]
        begun_s = time.perf_counter()
        pace = Pace(rate)
        end_s = begun_s + _limit_s(seconds, num_messages)
        sent = 0
        with _ticks(measured, every, as_json):
            with suppress(KeyboardInterrupt):
                for producer in cycle(made):
                    pace.wait(sent, end_s)
                    if time.perf_counter() >= end_s or (num_messages and sent >= num_messages):
                        break
                    # Latency counts from the due time, so that it includes the delay by earlier calls.
                    producer.send_async(payload, callback=receipt(int(pace.due_s(sent) * 1e9)))
                    sent += 1
            for producer in made:
                with suppress(pulsar.PulsarException):  # failed messages are counted one by one
                    producer.flush()
            took_s = time.perf_counter() - begun_s
            # The client calls back in its own thread; for the last messages it may do so after `flush` has returned.
            while measured.messages + measured.failed < sent and time.perf_counter() - begun_s - took_s < _CALLBACKS_S:
                time.sleep(0.001)
        _report("published to", topic, measured, took_s, as_json)


@perf_app.command("consume")
def consume(
    topic: Topic,
    subscription: Annotated[
        str, typer.Option("--subscriptions", "--subscription", "-ss", "-s", help="The subscription's name.")
    ] = "perf",
    seconds: Duration = None,
    num_messages: NumMessages = 0,
    type_: Annotated[
        SubscriptionType,
        typer.Option("--subscription-type", "-st", case_sensitive=False, help="The subscription's type."),
    ] = SubscriptionType.SHARED,
    position: Annotated[
        SubscriptionPosition,
        typer.Option("--subscription-position", "-sp", case_sensitive=False, help="Start of a new subscription."),
    ] = SubscriptionPosition.LATEST,
    earliest: Annotated[bool, typer.Option("--earliest", help="The same as -sp Earliest.")] = False,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0 for no limit.")] = 0,
    queue: Annotated[
        int, typer.Option("--receiver-queue-size", "-q", min=1, help="Messages that the client prefetches.")
    ] = 1000,
    every: Interval = 1,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Receive and acknowledge messages; latency is measured from the publish time, by both clients' clocks."""
    measured = _measured()
    start = SubscriptionPosition.EARLIEST if earliest else position
    with service_client(url) as client:
        import pulsar

        consumer = client.subscribe(
            topic, subscription, type_.of_client(), initial_position=start.of_client(), receiver_queue_size=queue
        )
        begun_s = time.perf_counter()
        pace = Pace(rate)
        end_s = begun_s + _limit_s(seconds, num_messages)
        with _ticks(measured, every, as_json), suppress(KeyboardInterrupt):
            while not num_messages or measured.messages < num_messages:
                pace.wait(measured.messages, end_s)
                left_s = end_s - time.perf_counter()
                if left_s <= 0:
                    break
                try:
                    message = consumer.receive(math.ceil(min(left_s, 1.0) * 1000))
                except pulsar.Timeout:
                    continue
                late_us = time.time_ns() // 1000 - message.publish_timestamp() * 1000
                try:
                    consumer.acknowledge(message)
                except pulsar.PulsarException as error:
                    measured.fail(error)
                else:
                    measured.add(late_us, len(message.data()))
        _report("received from", topic, measured, time.perf_counter() - begun_s, as_json)


def _limit_s(seconds: float | None, num_messages: int) -> float:
    if seconds is None:
        return math.inf if num_messages else _SECONDS
    return seconds or math.inf


def _measured() -> Measured:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise InvalidArgumentError(missing("hdrhistogram", "This command", "client")) from error
    return Measured(HdrHistogram(1, _MAX_LATENCY_US, 3))


@contextmanager
def _ticks(measured: Measured, every_s: float, as_json: bool) -> Iterator[None]:
    """Print rates on standard error every `every_s` seconds while the context is open, even if no message passes."""
    ended = Event()

    def tick() -> None:
        begun_s = last_s = time.perf_counter()
        last_messages = 0
        while not ended.wait(last_s + every_s - time.perf_counter()):
            now_s = time.perf_counter()
            messages = measured.messages
            rate = (messages - last_messages) / (now_s - last_s)
            output.err().print(f"{now_s - begun_s:6.1f} s  {rate:12,.0f} messages/s  {measured.failed:8,} failed")
            last_s, last_messages = now_s, messages

    with ExitStack() as stack:
        if every_s and not as_json:
            thread = Thread(target=tick, name="perf-ticks", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
        yield


def _report(done: str, topic: str, measured: Measured, took_s: float, as_json: bool) -> None:
    """Print the results; exit with 1 if messages failed."""
    latencies = {
        f"p{percent:g}": measured.latencies.get_value_at_percentile(percent) / 1000 for percent in _PERCENTILES
    }
    latencies["max"] = measured.latencies.get_max_value() / 1000
    if as_json:
        output.print_json(
            {
                "messages": measured.messages,
                "bytes": measured.bytes,
                "failed": measured.failed,
                "seconds": took_s,
                "messages_per_second": measured.messages / took_s,
                "latency_ms": latencies,
            }
        )
    else:
        output.say(
            f"{measured.messages:,} messages {done} {topic} in {took_s:.1f} s: {measured.messages / took_s:,.0f} "
            f"messages/s, {output.size(int(measured.bytes / took_s))}/s, {measured.failed:,} failed"
        )
        output.table("Latency in ms", tuple(latencies), [[f"{value:,.2f}" for value in latencies.values()]])
    if measured.failed:
        output.fail(f"{measured.failed:,} messages failed ({measured.reason}): look at the broker's log.")
        raise typer.Exit(1)
