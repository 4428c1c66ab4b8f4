"""A client of raw sockets: as rude, or as silent, as no official one is."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect
from pulsar_on_spark.protocol.frames import frame_of


def command(type_: str, **bodies: object) -> bytes:
    """A command's frame; the body goes by its field's name."""
    return frame_of(BaseCommand(type=BaseCommand.Type.Value(type_), **bodies).SerializeToString())


async def connect(url: str, client_version: str = "raw") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connected, CONNECTED received."""
    host, _, port = url.removeprefix("pulsar://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connecting = CommandConnect(client_version=client_version, protocol_version=21, auth_method_name="none")
    writer.write(command("CONNECT", connect=connecting))
    assert (await answer(reader)).type == BaseCommand.CONNECTED
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
