"""Measures of a broker, the same for ours and for a peer: each function returns one or a few figures by name."""

from __future__ import annotations

import socket
import ssl
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import psutil
import pulsar

from bench.appending import append_alone
from bench.broker.load import Load, Outcome, Shape
from bench.broker.targets import Target, cpu_s
from bench.payload import VALUE_SIZE_BYTES, value_batches

SENDS: Final = 2_000
"""Number of messages that are sent one at a time."""
BACKLOG: Final = 200_000
"""Number of consumed messages: fewer bytes than the default cache of either broker."""
LATENCY_RATE: Final = 10_000
HANDSHAKES: Final = 2_000
"""Number of TLS handshakes to measure; a broker accepts at most 200 a second."""
SMALL_BYTES: Final = 100
PARTITIONS: Final = (1, 16, 100)
CLIENTS: Final = (1, 4)
"""Producers and consumers of a topic in the shapes of the OpenMessaging Benchmark."""
_FRAME_BYTES: Final = 1_200
"""Size of a message of 1 KiB in a frame of the journal."""
_SAMPLE_S: Final = 0.5
_RECEIVE_MS: Final = 60_000
_QUEUE: Final = 10_000

Figures = dict[str, float]
"""Figures by name; the name includes the unit."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The common context of measures.

    Attributes:
        load: The program that puts load on brokers.
        seconds: Duration of a burst and of a latency measurement, in seconds.
        sustained_s: Duration of the sustained produce, in seconds.
        flow_bytes: Bytes that pass through while memory is measured.
        topics: Number of topics of the measure "many topics".
        topic_rate: Messages a second on each of them.
    """

    load: Load
    seconds: float
    sustained_s: float
    flow_bytes: float
    topics: int
    topic_rate: float


def start(target: Target, bench: Bench) -> Figures:
    """Measure the time until a broker serves, with a root that has no topics yet."""
    return {} if target.start_s is None else {"start s": target.start_s}


def burst(target: Target, bench: Bench) -> Figures:
    """Produce batches to one topic, as fast as possible."""
    return _burst(target, bench, Shape(bench.seconds), "burst")


def burst_zstd(target: Target, bench: Bench) -> Figures:
    """Produce batches as in `burst`, with messages that the producer compresses by zstd."""
    return _burst(target, bench, Shape(bench.seconds, compression="zstd"), "burst, zstd,")


def handshakes(target: Target, bench: Bench) -> Figures:
    """Count the TLS handshakes that a second of the broker's CPU serves, each on a connection of its own."""
    if target.trust_certs is None:
        return {}
    context = ssl.create_default_context(cafile=target.trust_certs)
    found = urlsplit(target.url)
    assert found.hostname is not None, "a service URL has a host"
    broker = target.processes()[0]
    before_s, began_s = cpu_s(broker), time.perf_counter()
    for _ in range(HANDSHAKES):
        with (
            socket.create_connection((found.hostname, found.port)) as plain,
            context.wrap_socket(plain, server_hostname=found.hostname),
        ):
            pass
    rate = HANDSHAKES / (time.perf_counter() - began_s)
    return {"handshakes/s": rate, "handshakes per CPU second of the broker": HANDSHAKES / (cpu_s(broker) - before_s)}


def sustained(target: Target, bench: Bench) -> Figures:
    """Produce for minutes with sealing; measure the slowest ten seconds, and the bytes left unsealed."""
    rates: list[float] = []
    lags: list[int] = []
    with bench.load.running(target, _topic("sustained"), Shape(bench.sustained_s)) as running:
        for line in running.lines():
            if not isinstance(line, Outcome):
                rates.append(line.acked / line.seconds)
                lags.append(target.unsealed_bytes())
    return {
        "sustained msg/s": statistics.mean(rates),
        "sustained, slowest 10 s, msg/s": min(rates),
        "unsealed at half, MB": lags[len(lags) // 2] / 1e6,
        "unsealed at end, MB": lags[-1] / 1e6,
    }


def send(target: Target, bench: Bench) -> Figures:
    """Send one message at a time, with the Python client; also to a non-persistent topic, for the round trip alone."""
    topics = {"send": _topic("send"), "send, not stored,": f"non-persistent://public/default/{_topic('send')}"}
    figures: Figures = {}
    for name, topic in topics.items():
        taken_ms = _send_one_by_one(target, topic)
        figures[f"{name} p50 ms"] = statistics.median(taken_ms)
        figures[f"{name} p99 ms"] = p99(taken_ms)
    return figures


def append(target: Target, bench: Bench) -> Figures:
    """Append and sync as much as a single send does, without a broker: the bound of `send` and `one-at-a-time`."""
    if not target.journals:
        return {}
    taken_ms = append_alone(target.journals, target.acks, _FRAME_BYTES, bench.seconds)
    return {"append alone p50 ms": statistics.median(taken_ms), "append alone p99 ms": p99(taken_ms)}


def one_at_a_time(target: Target, bench: Bench) -> Figures:
    """Measure a send of 1 KiB with a Go client that sends each message after the receipt of the one before."""
    outcome = bench.load.run(target, _topic("one"), Shape(bench.seconds, pending=1, batches=False))
    return {"one at a time p50 ms": outcome.send_p50_ms, "one at a time p99 ms": outcome.send_p99_ms}


def small(target: Target, bench: Bench) -> Figures:
    """Measure the rate and the CPU of messages of 100 bytes without batches."""
    return _burst(target, bench, Shape(bench.seconds, batches=False, size_bytes=SMALL_BYTES), "100 bytes, no batches,")


def shapes(target: Target, bench: Bench) -> Figures:
    """Measure the workloads of the OpenMessaging Benchmark on one topic: highest rates, and latencies at half of them.

    The result is empty for a broker with roles: one that may produce and consume cannot create partitioned topics.
    """
    if target.token is not None:
        return {}
    figures: Figures = {}
    for partitions in PARTITIONS:
        for clients in CLIENTS:
            shape = Shape(bench.seconds, partitions=partitions, producers=clients, consumers=clients)
            most = bench.load.run(target, _topic("shape"), shape)
            rate = most.acked / most.seconds
            half = bench.load.run(target, _topic("shape"), replace(shape, rate=rate / 2 / clients))
            what = f"{partitions} partitions, {clients} + {clients} clients"
            figures |= {
                f"{what}: msg/s": rate,
                f"{what}, half of it: publish p50 ms": half.send_p50_ms,
                f"{what}, half of it: publish p99 ms": half.send_p99_ms,
                f"{what}, half of it: end to end p50 ms": half.end_to_end_p50_ms,
                f"{what}, half of it: end to end p99 ms": half.end_to_end_p99_ms,
            }
    return figures


def consume_cached(target: Target, bench: Bench) -> Figures:
    """Consume a backlog that was published while its consumer was connected, with the Python client.

    The consumer's queue (10,000 messages) is full before the consumer begins to receive.
    """
    topic = _topic("cached")
    with _client(target) as client:
        consumer = _subscribe(client, topic)
        _publish(client, topic)
        return {"consume, cached, msg/s": _consume_rate(consumer)}


def consume_fresh(target: Target, bench: Bench) -> Figures:
    """Consume a backlog that was published just now, without a consumer."""
    topic = _topic("fresh")
    with _client(target) as client:
        _publish(client, topic)
        return {"consume, fresh backlog, msg/s": _consume_rate(_subscribe(client, topic))}


def consume_sealed(target: Target, bench: Bench) -> Figures:
    """Consume a backlog from sealed segments, none of it in the broker's memory; a peer reads in its usual way."""
    topic = _topic("sealed")
    with _client(target) as client:
        _publish(client, topic)
    target.seal()
    with _client(target) as client:
        return {"consume, sealed, msg/s": _consume_rate(_subscribe(client, topic))}


def latency(target: Target, bench: Bench) -> Figures:
    """Measure from the producer's call to the delivery, at 10,000 messages a second on one topic, batched by 1 ms."""
    shape = Shape(bench.seconds, rate=LATENCY_RATE, consumers=1)
    return _flow(target, bench, shape, f"{LATENCY_RATE:,} msg/s")


def catch_up(target: Target, bench: Bench) -> Figures:
    """Measure as in `latency`, while a Python client repeatedly reads another topic's sealed backlog."""
    topic = _topic("history")
    with _client(target) as client:
        _publish(client, topic)
    target.seal()
    what = f"{LATENCY_RATE:,} msg/s beside catch-up"
    with _catching_up(target, topic) as read:
        began_s, before = time.perf_counter(), read.messages
        figures = _flow(target, bench, Shape(bench.seconds, rate=LATENCY_RATE, consumers=1), what)
        rate = (read.messages - before) / (time.perf_counter() - began_s)
    return figures | {f"{what}: caught up msg/s": rate}


def topics(target: Target, bench: Bench) -> Figures:
    """Measure many topics with a producer and a consumer each, and a few messages a second on each."""
    shape = Shape(bench.seconds, topics=bench.topics, rate=bench.topic_rate, consumers=1)
    return _flow(target, bench, shape, f"{bench.topics:,} topics, {bench.topic_rate:g} msg/s each")


def memory(target: Target, bench: Bench) -> Figures:
    """Measure the largest memory of the broker's processes while `flow_bytes` pass through, with a tailing consumer.

    PSS counts pages shared by processes once. Figures are the maxima of the sum and of each process.
    """
    peak_total = 0
    peaks: dict[str, int] = {}

    def sample() -> None:
        nonlocal peak_total
        sizes = list(_sizes(target.processes()))
        peak_total = max(peak_total, sum(pss for _, pss, _ in sizes))
        for name, pss, rss in sizes:
            for kind, size in (("PSS", pss), ("RSS", rss)):
                peaks[f"{kind} of {name}, MB"] = max(peaks.get(f"{kind} of {name}, MB", 0), size)

    flowed_bytes, passes = 0, 0
    with _sampling(sample):
        while flowed_bytes < bench.flow_bytes:
            passes += 1
            outcome = bench.load.run(target, _topic(f"memory-{passes}"), Shape(30.0, warm_up_s=1.0, consumers=1))
            flowed_bytes += outcome.received * VALUE_SIZE_BYTES
    figures = {"memory: flowed, GB": flowed_bytes / 1e9, "PSS of all, MB": peak_total / 1e6}
    return figures | {name: size / 1e6 for name, size in sorted(peaks.items())}


MEASURES: Final[dict[str, Callable[[Target, Bench], Figures]]] = {
    "start": start,
    "burst": burst,
    "burst-zstd": burst_zstd,
    "handshakes": handshakes,
    "append": append,
    "send": send,
    "one-at-a-time": one_at_a_time,
    "small": small,
    "consume-cached": consume_cached,
    "consume-fresh": consume_fresh,
    "consume-sealed": consume_sealed,
    "latency": latency,
    "catch-up": catch_up,
    "topics": topics,
    "shapes": shapes,
    "memory": memory,
    "sustained": sustained,
}
OF_ANY_BROKER: Final = ("burst", "burst-zstd", "one-at-a-time", "small", "latency", "topics", "sustained")
"""Measures that need no Pulsar client: a peer may be Kafka or NATS, too."""


def _burst(target: Target, bench: Bench, shape: Shape, what: str) -> Figures:
    """Return the rate, and the CPU seconds of the process that serves clients and of all, from start to end."""
    serving = target.processes()[0]
    serving_s, all_s = cpu_s(serving), _cpu_by_process(target)
    outcome = bench.load.run(target, _topic("burst"), shape)
    us_per_message = 1e6 / outcome.all_acked
    return {
        f"{what} msg/s": outcome.acked / outcome.seconds,
        f"{what} CPU of the serving process, us/msg": (cpu_s(serving) - serving_s) * us_per_message,
        f"{what} CPU of all processes, us/msg": _spent_s(target, all_s) * us_per_message,
    }


def _flow(target: Target, bench: Bench, shape: Shape, what: str) -> Figures:
    before_s = _cpu_by_process(target)
    with bench.load.running(target, _topic("flow"), shape) as running:
        *_, outcome = running.lines()
    assert isinstance(outcome, Outcome), "the last line is the outcome"
    return {
        f"{what}: end to end p50 ms": outcome.end_to_end_p50_ms,
        f"{what}: end to end p99 ms": outcome.end_to_end_p99_ms,
        f"{what}: received msg/s": outcome.received / outcome.seconds,
        f"{what}: broker's CPU s, start to end": _spent_s(target, before_s),
        f"{what}: connected after s": outcome.connect_s,
    }


def p99(taken_ms: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(taken_ms, n=100)[98]


def _cpu_by_process(target: Target) -> dict[int, float]:
    return {process.pid: cpu_s(process) for process in target.processes()}


def _spent_s(target: Target, before_s: dict[int, float]) -> float:
    """Return the CPU seconds that the target's current processes have used since `before_s`, seconds by process id."""
    return sum(spent_s - before_s.get(pid, 0.0) for pid, spent_s in _cpu_by_process(target).items())


def _sizes(processes: list[psutil.Process]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, PSS, RSS) in bytes of each process, leaving out those that have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            full = process.memory_full_info()
            yield _role(process), full.pss, full.rss


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "multiprocessing" in command:
        return "a child process"
    return "the broker" if "standalone" in command.lower() else "others"


@contextmanager
def _sampling(sample: Callable[[], None]) -> Iterator[None]:
    """Call a function repeatedly in a thread while the context is open."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(_SAMPLE_S):
            sample()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- the Python client -------------------------------------------------------------------------------------------------


@contextmanager
def _client(target: Target) -> Iterator[pulsar.Client]:
    with closing(
        pulsar.Client(
            target.url,
            authentication=None if target.token is None else pulsar.AuthenticationToken(target.token),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            tls_trust_certs_file_path=target.trust_certs,
            tls_validate_hostname=True,
        )
    ) as client:
        yield client


def _topic(name: str) -> str:
    return f"bench-{name}-{uuid.uuid4().hex}"


def _values(count: int) -> list[bytes]:
    values: list[bytes] = next(value_batches(count)).column("value").to_pylist()
    return values


def _publish(client: pulsar.Client, topic: str) -> None:
    """Publish a backlog of `BACKLOG` messages in batches."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True, max_pending_messages=_QUEUE
    )
    values = _values(10_000)
    for number in range(BACKLOG):
        producer.send_async(values[number % len(values)], lambda *_: None)
    producer.flush()


def _send_one_by_one(target: Target, topic: str) -> list[float]:
    """Return the duration of each send in milliseconds, without the first tenth."""
    taken_ms: list[float] = []
    with _client(target) as client:
        producer = client.create_producer(topic)
        for value in _values(SENDS):
            started_s = time.perf_counter()
            producer.send(value)
            taken_ms.append((time.perf_counter() - started_s) * 1000)
    return taken_ms[SENDS // 10 :]


def _subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=_QUEUE
    )


@dataclass(slots=True)
class _Read:
    messages: int = 0


@contextmanager
def _catching_up(target: Target, topic: str) -> Iterator[_Read]:
    """Read a topic's backlog repeatedly while the context is open; yields the count after the first complete pass."""
    read, was_read, over = _Read(), threading.Event(), threading.Event()

    def loop() -> None:
        with _client(target) as client:
            while not over.is_set():
                with closing(
                    client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1000)
                ) as reader:
                    while not over.is_set() and reader.has_message_available():
                        reader.read_next(_RECEIVE_MS)
                        read.messages += 1
                was_read.set()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        was_read.wait(_RECEIVE_MS / 1000)
        yield read
    finally:
        over.set()
        thread.join()


def _consume_rate(consumer: pulsar.Consumer) -> float:
    """Consume a whole backlog with cumulative acknowledgements, and return the messages a second."""
    consumer.acknowledge(consumer.receive(_RECEIVE_MS))
    started_s = time.perf_counter()
    for number in range(1, BACKLOG):
        message = consumer.receive(_RECEIVE_MS)
        if number % 1000 == 0:
            consumer.acknowledge_cumulative(message)
    return (BACKLOG - 1) / (time.perf_counter() - started_s)
