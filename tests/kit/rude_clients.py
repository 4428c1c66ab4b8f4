"""Clients that no library would be: `python -m tests.kit.rude_clients HOW pulsar://host:port TOPIC`.

A process of its own, so that what the broker's other clients notice of it is the broker's doing. It says `at work`
once it is, and continues until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import ssl
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
    Schema,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.server import MAX_IDS
from tests.kit.pulsar_entries import ClientMessage, batch_bomb, single_entry

CONNECTIONS: Final = 2_000
_ENTRY: Final = single_entry(ClientMessage(b"x" * 1_000))
_UNKNOWN: Final = BaseCommand.FromString(b"\x08\x7f")
"""A command that no version of the protocol has."""


class Rude:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connected(cls, url: str) -> Rude:
        """Connected, and greeted."""
        rude = await cls.plain(url)
        connect = CommandConnect(client_version="rude", protocol_version=21)
        await rude.ask(BaseCommand(type=BaseCommand.CONNECT, connect=connect))
        return rude

    @classmethod
    async def plain(cls, url: str) -> Rude:
        """Connected, and nothing said."""
        scheme, _, address = url.partition("://")
        host, _, port = address.partition(":")
        context = None
        if scheme == "pulsar+ssl":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection(host, int(port), ssl=context))

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        """Send a frame."""
        self.writer.write(frame_of(command.SerializeToString(), len(entry)) + entry)

    async def ask(self, command: BaseCommand) -> BaseCommand:
        """Send a frame; return the one that comes back."""
        self.send(command)
        return await self.answer()

    async def answer(self) -> BaseCommand:
        """The next frame."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        body = await self.reader.readexactly(size)
        return BaseCommand.FromString(body[4 : 4 + int.from_bytes(body[:4], "big")])

    async def subscribe(self, topic: str, permits: int) -> None:
        """Add a Shared consumer with this number of permits, of a subscription of its own."""
        subscribe = CommandSubscribe(
            topic=topic,
            subscription="rude",
            subType=CommandSubscribe.Shared,
            initialPosition=CommandSubscribe.Earliest,
            consumer_id=1,
            request_id=1,
        )
        await self.ask(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe))
        self.send(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=permits)))

    async def produce(self, topic: str) -> None:
        """A producer."""
        await self.ask(
            BaseCommand(type=BaseCommand.PRODUCER, producer=CommandProducer(topic=topic, producer_id=1, request_id=1))
        )


async def never_read(url: str, topic: str) -> None:
    """Consume without reading what comes, and publish without reading receipts."""
    consumer, producer = await Rude.connected(url), await Rude.connected(url)
    await consumer.subscribe(topic, 1_000_000)
    await producer.produce(topic)
    _at_work()
    for number in itertools.count():
        send = CommandSend(producer_id=1, sequence_id=number, num_messages=1)
        producer.send(BaseCommand(type=BaseCommand.SEND, send=send), _ENTRY)
        await producer.writer.drain()


async def never_acknowledge(url: str, topic: str) -> None:
    """Take everything, and give none of it back."""
    consumer = await Rude.connected(url)
    await consumer.subscribe(topic, 1_000_000)
    _at_work()
    while await consumer.reader.read(1 << 16):
        pass


async def stall_in_a_frame(url: str, topic: str) -> None:
    """Say that much is coming, send half of it, and wait."""
    stalled = [await Rude.connected(url) for _ in range(100)]
    for each in stalled:
        await each.produce(topic)
        each.writer.write((5 << 20).to_bytes(4, "big") + bytes(1 << 20))
    _at_work()
    await asyncio.Event().wait()


async def garbage(url: str, topic: str) -> None:
    """Random bytes, again and again."""

    async def send() -> None:
        rude = await Rude.plain(url)
        rude.writer.write(os.urandom(10_000))
        await rude.writer.drain()
        await rude.reader.read()
        rude.writer.close()

    await _again_and_again(send)


async def lie_about_lengths(url: str, topic: str) -> None:
    """Frames of 4 GiB, of nothing, and with commands longer than themselves."""

    async def send() -> None:
        for lie in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x08\0\0\xff\xff\0\0\0\0"):
            rude = await Rude.connected(url)
            rude.writer.write(lie)
            await rude.writer.drain()
            await asyncio.wait((asyncio.ensure_future(rude.reader.read()),), timeout=0.05)
            rude.writer.close()

    await _again_and_again(send)


async def many_connections(url: str, topic: str) -> None:
    """Two thousand of them, a producer on each."""
    held = []
    for _ in range(CONNECTIONS // 50):
        held += await asyncio.gather(*(Rude.connected(url) for _ in range(50)))
    await asyncio.gather(*(each.produce(topic) for each in held))
    _at_work()
    await asyncio.Event().wait()


async def flood_of_unknown_commands(url: str, topic: str) -> None:
    """As fast as they go out."""
    rude = await Rude.connected(url)
    frames = frame_of(_UNKNOWN.SerializeToString()) * 1_000
    _at_work()
    while True:
        rude.writer.write(frames)
        await rude.writer.drain()


async def stall_before_connecting(url: str, topic: str) -> None:
    """Begin large frames without a CONNECT, as many as are let in."""

    async def send() -> None:
        rude = await Rude.plain(url)
        rude.writer.write((5 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big") + bytes(1 << 20))
        with suppress(ConnectionError):
            await rude.reader.read()
        rude.writer.close()

    await _again_and_again(send)


async def huge_acknowledgements(url: str, topic: str) -> None:
    """Send commands with the largest allowed number of ids, again and again."""
    rude = await Rude.connected(url)
    await rude.subscribe(topic, 1_000)
    ids = [MessageIdData(ledgerId=1, entryId=number) for number in range(MAX_IDS)]
    ack = CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=ids)
    frame = frame_of(BaseCommand(type=BaseCommand.ACK, ack=ack).SerializeToString())
    _at_work()
    while True:
        rude.writer.write(frame)
        await rude.writer.drain()


async def batch_bombs(url: str, topic: str) -> None:
    """Small batches that expand to as many messages as a batch may have, or claim to."""
    consumer, producer = await Rude.connected(url), await Rude.connected(url)
    await consumer.subscribe(topic, 1_000)
    await producer.produce(topic)
    bombs = batch_bomb(100_000), batch_bomb(16_000_000, claimed=1_000), batch_bomb(16_000_000)
    _at_work()
    for number in itertools.count():
        send = CommandSend(producer_id=1, sequence_id=number, num_messages=1)
        producer.send(BaseCommand(type=BaseCommand.SEND, send=send), bombs[number % len(bombs)])
        await producer.writer.drain()
        await asyncio.sleep(0.01)


async def huge_schemas(url: str, topic: str) -> None:
    """Schemas of fifteen thousand fields, another one each time."""
    rude = await Rude.connected(url)
    _at_work()
    for number in itertools.count():
        fields = [{"name": f"f{number}_{field}", "type": "string", "default": ""} for field in range(15_000)]
        data = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
        schema = Schema(name="s", schema_data=data, type=Schema.Avro)
        producer = CommandProducer(topic=topic, producer_id=number, request_id=number, schema=schema)
        await rude.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer))


async def flood_of_topics(url: str, topic: str) -> None:
    """Topics by their first use, as fast as they are created."""
    rude = await Rude.connected(url)
    _at_work()
    for first in itertools.count(0, 1_000):
        for number in range(first, first + 1_000):
            producer = CommandProducer(topic=f"{topic}-{number}", producer_id=number, request_id=number)
            rude.send(BaseCommand(type=BaseCommand.PRODUCER, producer=producer))
        for _ in range(1_000):
            await rude.answer()


HOW: Final[dict[str, Callable[[str, str], Coroutine[Any, Any, None]]]] = {
    each.__name__: each
    for each in (
        never_read,
        never_acknowledge,
        stall_in_a_frame,
        garbage,
        lie_about_lengths,
        many_connections,
        flood_of_unknown_commands,
        stall_before_connecting,
        huge_acknowledgements,
        batch_bombs,
        huge_schemas,
        flood_of_topics,
    )
}


async def _again_and_again(once: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await once()
    _at_work()
    while True:
        # The broker hangs up while the rest is still being sent.
        await asyncio.gather(*(once() for _ in range(10)), return_exceptions=True)


def _at_work() -> None:
    print("at work", flush=True)


if __name__ == "__main__":
    asyncio.run(HOW[sys.argv[1]](sys.argv[2], sys.argv[3]))
