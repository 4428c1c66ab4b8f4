"""`pulsarpy perf produce` and `perf consume`: how many messages go through a broker, and how long each takes."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, Topic
from pulsar_on_spark.cli.pulsar_client import ServiceUrl, pulsar_errors, service_client
from pulsar_on_spark.model.errors import InvalidArgumentError

perf_app = typer.Typer(help="Measure what goes through a broker.", no_args_is_help=True)

_PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MAX_LATENCY_US: Final = 600_000_000
_CALLBACKS_S: Final = 10.0
"""How long the last receipts are waited for."""
_REPORT_EVERY_S: Final = 1.0

Duration = Annotated[float, typer.Option("--seconds", min=0.1, help="How long.")]


@dataclass(slots=True)
class Measured:
    """What was counted. Latencies are in microseconds."""

    latencies: Any
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    lock: Lock = field(default_factory=Lock)

    def add(self, latency_us: int, size_bytes: int) -> None:
        """A message is through."""
        with self.lock:
            self.latencies.record_value(min(max(latency_us, 1), _MAX_LATENCY_US))
            self.messages += 1
            self.bytes += size_bytes


@perf_app.command("produce")
def produce(
    topic: Topic,
    seconds: Duration = 10.0,
    size: Annotated[int, typer.Option(min=1, max=5 << 20, help="Bytes of a message.")] = 1024,
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0 for as many as it takes.")] = 0,
    batching: Annotated[bool, typer.Option(help="Several messages in an entry.")] = True,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages; a latency is from the call to the receipt, with --rate from when the call was due."""
    measured = _measured()
    payload = bytes(index % 251 for index in range(size))

    def receipt(sent_ns: int) -> Any:
        def took(result: Any, _: Any) -> None:
            if result.value:
                measured.failed += 1
            else:
                measured.add((time.perf_counter_ns() - sent_ns) // 1000, size)

        return took

    with pulsar_errors(), closing(service_client(url)) as client:
        producer = client.create_producer(
            topic, batching_enabled=batching, batching_max_publish_delay_ms=1, block_if_queue_full=True
        )
        begun_s = told_s = time.perf_counter()
        sent = 0
        while (now_s := time.perf_counter()) - begun_s < seconds:
            ahead_s = sent / rate - (now_s - begun_s) if rate else 0.0
            if ahead_s > 0:
                time.sleep(min(ahead_s, seconds))
                continue
            # A call that comes late because those before it took long must not hide that.
            due_s = begun_s + sent / rate if rate else time.perf_counter()
            producer.send_async(payload, callback=receipt(int(due_s * 1e9)))
            sent += 1
            told_s = _tell(measured, begun_s, told_s, as_json)
        producer.flush()
        took_s = time.perf_counter() - begun_s
        # The client's callbacks run in a thread of its own, the last ones after `flush` has returned.
        while measured.messages + measured.failed < sent and time.perf_counter() - begun_s - took_s < _CALLBACKS_S:
            time.sleep(0.001)
        _report("published to", topic, measured, took_s, as_json)


@perf_app.command("consume")
def consume(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Its name.")] = "perf",
    seconds: Duration = 10.0,
    earliest: Annotated[bool, typer.Option(help="Let a new subscription begin at the first message.")] = False,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Receive and acknowledge messages; a latency is from the producer's publish time, by both clocks."""
    measured = _measured()
    with pulsar_errors(), closing(service_client(url)) as client:
        import pulsar

        start = pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest
        consumer = client.subscribe(topic, subscription, pulsar.ConsumerType.Shared, initial_position=start)
        begun_s = told_s = time.perf_counter()
        while (left_s := seconds - (time.perf_counter() - begun_s)) > 0:
            try:
                message = consumer.receive(max(int(min(left_s, 1.0) * 1000), 1))
            except pulsar.Timeout:
                continue
            late_us = time.time_ns() // 1000 - message.publish_timestamp() * 1000
            measured.add(late_us, len(message.data()))
            consumer.acknowledge(message)
            told_s = _tell(measured, begun_s, told_s, as_json)
        _report("received from", topic, measured, time.perf_counter() - begun_s, as_json)


def _measured() -> Measured:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise InvalidArgumentError(
            "This takes `hdrhistogram`, which is not installed: `pip install 'pulsar-on-spark[client]'`."
        ) from error
    return Measured(HdrHistogram(1, _MAX_LATENCY_US, 3))


def _tell(measured: Measured, begun_s: float, told_s: float, as_json: bool) -> float:
    now_s = time.perf_counter()
    if now_s - told_s < _REPORT_EVERY_S:
        return told_s
    if not as_json:
        output.err().print(f"{now_s - begun_s:6.1f} s  {measured.messages / (now_s - begun_s):12,.0f} messages/s")
    return now_s


def _report(done: str, topic: str, measured: Measured, took_s: float, as_json: bool) -> None:
    found = {f"p{each:g}": measured.latencies.get_value_at_percentile(each) / 1000 for each in _PERCENTILES}
    found["max"] = measured.latencies.get_max_value() / 1000
    if as_json:
        output.print_json(
            {
                "messages": measured.messages,
                "bytes": measured.bytes,
                "failed": measured.failed,
                "seconds": took_s,
                "messages_per_second": measured.messages / took_s,
                "latency_ms": found,
            }
        )
        return
    output.say(
        f"{measured.messages:,} messages {done} {topic} in {took_s:.1f} s: {measured.messages / took_s:,.0f} "
        f"messages/s, {output.size(int(measured.bytes / took_s))}/s, {measured.failed:,} failed"
    )
    output.table("Latency in ms", tuple(found), [[f"{value:,.2f}" for value in found.values()]])
