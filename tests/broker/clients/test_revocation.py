"""A permission is revoked while a thousand producers of few connections publish with it.

Raw sockets, because official clients stop to publish by themselves when the broker closes a producer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import jwt
import psutil
import pulsar
import pytest

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandPing,
    CommandProducer,
    CommandSend,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_broker import RunningBroker
from tests.kit.token_settings import token_settings
from tests.kit.waiting import until

from .raw import answer, command, connect, connecting

MIB = 1 << 20
LIMIT_S = 60
STATED_S = 2.0
"""The time in which a revocation takes effect."""
SOON_S = STATED_S + 8.0
"""The broker, its clients and other tests share the CPUs: 1.4 to 2.9 s with ten processes for each CPU."""
PAUSE_S = 0.5
"""CPU time for which the event loop may serve others than a PING: 0.1 to 0.2 s were measured, for a thousand refusals
of producers that are opened again."""
GROWTH_BYTES = 100 * MIB
PRODUCERS, TOPICS, CONNECTIONS = 1000, 50, 4
IN_FLIGHT = 2
"""Messages of each producer without a receipt."""
IN_TIME, LATE = b"in-time", b"late"
"""Contents of messages sent before and after the producer was closed."""
OTHERS, END = b"others", b"end"
PING = command("PING", ping=CommandPing())
SECRET = os.urandom(32)


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def broker(memory_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = token_settings(tmp_path_factory.mktemp("secret"), SECRET) | {
        "managed_ledger_cache_size_mb": 32,
        "max_message_publish_buffer_size_mb": 32,
    }
    with RunningBroker(memory_folder / "revoking", settings) as running:
        yield running


@pytest.fixture(scope="module")
def root(broker: RunningBroker) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token('root')}"}
    with httpx.Client(base_url=f"{broker.web_url}/admin/v2", headers=headers, timeout=LIMIT_S) as made:
        yield made


def client_of(broker: RunningBroker, role: str) -> pulsar.Client:
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(broker.url, pulsar.AuthenticationToken(token(role)), logger=silent)


@dataclass
class Publisher:
    """A producer that publishes as fast as it gets receipts, and a few messages more after it was closed."""

    id: int
    topic: str
    connection: Publishing
    next_sequence: int = 0
    stored: int = 0
    """Messages with a receipt: its sequence ids below this number."""
    closed_s: float | None = None
    is_refused: bool = False

    def open(self) -> None:
        body = CommandProducer(topic=self.topic, producer_id=self.id, request_id=self.id)
        self.connection.writer.write(command("PRODUCER", producer=body))

    def send(self, content: bytes) -> None:
        send = CommandSend(producer_id=self.id, sequence_id=self.next_sequence, num_messages=1)
        entry = single_entry(ClientMessage(b"%d %d %b" % (self.id, self.next_sequence, content)))
        frame = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
        self.connection.writer.write(frame_of(frame, len(entry)) + entry)
        self.next_sequence += 1

    def on_receipt(self, sequence_id: int) -> None:
        assert sequence_id == self.stored, "receipts come in order"
        assert self.closed_s is None or sequence_id < self.first_late, "nothing is published by a closed producer"
        self.stored += 1
        if self.closed_s is None:
            self.send(IN_TIME)

    def on_closed(self) -> None:
        assert self.closed_s is None
        self.closed_s = time.monotonic()
        self.first_late = self.next_sequence
        for _ in range(IN_FLIGHT):
            self.send(LATE)
        self.open()


@dataclass
class Publishing:
    """A connection with some of the producers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    publishers: dict[int, Publisher] = field(default_factory=dict)
    opened: int = 0

    async def run(self) -> None:
        """Handle what the broker says until each producer is closed, and its reopening refused."""
        while not all(each.is_refused for each in self.publishers.values()):
            said = await answer(self.reader)
            match said.type:
                case BaseCommand.PRODUCER_SUCCESS:
                    self.opened += 1
                    assert self.publishers[said.producer_success.request_id].closed_s is None, "it has no right"
                    for _ in range(IN_FLIGHT):
                        self.publishers[said.producer_success.request_id].send(IN_TIME)
                case BaseCommand.SEND_RECEIPT:
                    self.publishers[said.send_receipt.producer_id].on_receipt(said.send_receipt.sequence_id)
                case BaseCommand.CLOSE_PRODUCER:
                    self.publishers[said.close_producer.producer_id].on_closed()
                case BaseCommand.ERROR:
                    assert said.error.error == ServerError.AuthorizationError, said
                    self.publishers[said.error.request_id].is_refused = True
                case other:
                    raise AssertionError(f"unexpected {BaseCommand.Type.Name(other)}")


@dataclass
class Seen:
    """The worst that a bystander has seen.

    Attributes:
        ping_s: The longest wait for a PONG.
        ping_cpu_s: The most CPU time that the broker's event loop used during one: other work on the machine makes the
            wait longer, but not this.
        send_s: The longest wait for a receipt.
        sends: Receipts that came.
        memory_bytes: The most memory of the broker.
    """

    ping_s: float = 0.0
    ping_cpu_s: float = 0.0
    send_s: float = 0.0
    sends: int = 0
    memory_bytes: int = 0


class Bystander:
    """Another role's client, which publishes to the same namespace, and one that sends PINGs."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._process = psutil.Process(broker.pid)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._ping, self._send)]
        self.seen = Seen()

    def __enter__(self) -> Bystander:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(LIMIT_S)

    def begin_again(self) -> Seen:
        """Forget what was seen, and return it."""
        seen, self.seen = self.seen, Seen()
        return seen

    def _ping(self) -> None:
        host, _, port = self._broker.url.removeprefix("pulsar://").partition(":")
        with socket.create_connection((host, int(port)), LIMIT_S) as made:
            made.sendall(connecting(token=token("other")))
            assert made.recv(MIB)
            while not self._over.is_set():
                begun_s, cpu_s = time.monotonic(), self._cpu_s()
                made.sendall(PING)
                assert made.recv(MIB)
                seen = self.seen
                seen.ping_s = max(seen.ping_s, time.monotonic() - begun_s)
                seen.ping_cpu_s = max(seen.ping_cpu_s, self._cpu_s() - cpu_s)
                seen.memory_bytes = max(seen.memory_bytes, self._process.memory_info().rss)

    def _cpu_s(self) -> float:
        """The CPU time of the process's first thread, which runs the event loop."""
        return int(Path(f"/proc/{self._broker.pid}/schedstat").read_text().split()[0]) / 1e9

    def _send(self) -> None:
        client = client_of(self._broker, "other")
        producer = client.create_producer(self._topic, batching_enabled=False)
        while not self._over.is_set():
            begun_s = time.monotonic()
            producer.send(OTHERS)
            self.seen.send_s = max(self.seen.send_s, time.monotonic() - begun_s)
            self.seen.sends += 1
        client.close()


async def open_publishers(broker: RunningBroker, topic: str) -> list[Publishing]:
    publishings = [Publishing(*await connect(broker.url, token=token("both"))) for _ in range(CONNECTIONS)]
    for number in range(PRODUCERS):
        publishing = publishings[number % CONNECTIONS]
        publishing.publishers[number] = made = Publisher(number, f"{topic}-partition-{number % TOPICS}", publishing)
        made.open()
    return publishings


@pytest.mark.long
def test_a_revocation_ends_a_thousand_producers_in_flight(
    broker: RunningBroker, root: httpx.Client, topic: str
) -> None:
    namespace = f"public/{topic}"
    for method, path, body in (
        ("PUT", f"namespaces/{namespace}", None),
        ("POST", f"namespaces/{namespace}/permissions/both", ["produce", "consume"]),
        ("POST", f"namespaces/{namespace}/permissions/other", ["produce", "consume"]),
        ("PUT", f"persistent/{namespace}/t/partitions", TOPICS),
    ):
        assert root.request(method, f"/{path}", json=body).is_success

    async def scene(bystander: Bystander) -> tuple[list[Publisher], float, Seen]:
        publishings = await open_publishers(broker, f"persistent://{namespace}/t")
        publishers = [made for each in publishings for made in each.publishers.values()]
        running = asyncio.gather(*(each.run() for each in publishings))
        await until(lambda: running.done() or all(each.stored > 3 for each in publishers))
        bystander.begin_again()
        await until(lambda: running.done() or all(each.stored > 6 for each in publishers))
        assert not running.done(), running.exception()
        before, begun_s = bystander.begin_again(), time.monotonic()
        assert (await asyncio.to_thread(root.delete, f"/namespaces/{namespace}/permissions/both")).is_success
        await running
        for each in publishings:
            each.writer.close()
        return publishers, begun_s, before

    with Bystander(broker, f"{namespace}/others") as bystander:
        publishers, begun_s, before = asyncio.run(asyncio.wait_for(scene(bystander), LIMIT_S))
        during = bystander.seen
    closed_s = max(each.closed_s for each in publishers if each.closed_s is not None) - begun_s
    grown_bytes = during.memory_bytes - before.memory_bytes
    receipts = sum(each.stored for each in publishers)
    print(f"{PRODUCERS} producers with {receipts} receipts were closed within {closed_s:.2f} s")
    print(f"memory grew by {grown_bytes / MIB:.0f} MiB; before: {before}; during: {during}")
    assert closed_s < SOON_S
    assert during.ping_cpu_s < PAUSE_S
    assert during.sends > 0
    assert grown_bytes < GROWTH_BYTES
    check_contents(broker, f"persistent://{namespace}/t", publishers)


def check_contents(broker: RunningBroker, topic: str, publishers: list[Publisher]) -> None:
    """All with a receipt is there once and in order, and nothing that a closed producer has sent."""
    client = client_of(broker, "root")
    consumer = client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for _ in range(TOPICS):
        producer.send(END)
    found: dict[int, list[int]] = {each.id: [] for each in publishers}
    for _ in range(TOPICS):
        while (content := consumer.receive(LIMIT_S * 1000).data()) != END:
            id_, sequence_id, kind = content.split(b" ")
            assert kind != LATE
            found[int(id_)].append(int(sequence_id))
    client.close()
    for each in publishers:
        assert found[each.id] == list(range(len(found[each.id]))), f"producer {each.id}: {found[each.id]}"
        assert len(found[each.id]) >= each.stored > 0
