"""A client of raw sockets: as rude, or as silent, as no official one is."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandFlow, CommandSubscribe
from pulsar_on_spark.protocol.frames import frame_of


def command(type_: str, **bodies: object) -> bytes:
    """A command's frame; the body goes by its field's name."""
    return frame_of(BaseCommand(type=BaseCommand.Type.Value(type_), **bodies).SerializeToString())


async def connect(
    url: str, client_version: str = "raw", token: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connected, CONNECTED received; with a token if one is given."""
    host, _, port = url.removeprefix("pulsar://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(connecting(client_version, token))
    assert (await answer(reader)).type == BaseCommand.CONNECTED
    return reader, writer


def connecting(client_version: str = "raw", token: str = "") -> bytes:
    """The frame of a CONNECT."""
    method = "token" if token else "none"
    body = CommandConnect(
        client_version=client_version, protocol_version=21, auth_method_name=method, auth_data=token.encode()
    )
    return command("CONNECT", connect=body)


async def consuming(
    url: str, topic: str, subscription: str, type_: CommandSubscribe.SubType
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connected, with consumer 1 subscribed from the earliest message on; it may be sent more than there is.

    Raises:
        EOFError: the broker refuses it, for now at least.
    """
    reader, writer = await connect(url)
    subscribe = CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=type_,
        initialPosition=CommandSubscribe.Earliest,
        consumer_id=1,
        request_id=1,
    )
    writer.write(command("SUBSCRIBE", subscribe=subscribe))
    while (said := await answer(reader)).type != BaseCommand.SUCCESS:
        if said.type in (BaseCommand.ERROR, BaseCommand.CLOSE_CONSUMER):
            writer.close()
            raise EOFError(said)
    writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=1_000_000)))
    return reader, writer


async def answer_of(reader: asyncio.StreamReader, type_: str) -> BaseCommand:
    """The broker's next command of a type; others are passed over."""
    while (found := await answer(reader)).type != BaseCommand.Type.Value(type_):
        pass
    return found


async def answer(reader: asyncio.StreamReader) -> BaseCommand:
    """The broker's next command, its payload passed over."""
    return (await answer_and_entry(reader))[0]


async def answer_and_entry(reader: asyncio.StreamReader) -> tuple[BaseCommand, bytes]:
    """The broker's next command, and the entry that follows it where one does."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    body = await reader.readexactly(size)
    entry_at = 4 + int.from_bytes(body[:4], "big")
    return BaseCommand.FromString(body[4:entry_at]), body[entry_at:]
