"""Few answers with messages are in memory at a time, even if clients do not read them."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Depends, FastAPI

from pulsar_on_spark.broker.web import paced_response
from pulsar_on_spark.broker.web.admin import peeks
from pulsar_on_spark.broker.web.admin.peeks import PEEKS, peek_turn, peek_turns
from pulsar_on_spark.broker.web.paced_response import PacedResponse

from .serving import Client, get, serving

LARGE = 64 << 20
"""Bytes that no socket buffers."""


def application() -> FastAPI:
    app = FastAPI()
    app.state.peek_turns = peek_turns()

    @app.get("/message", dependencies=[Depends(peek_turn)])
    async def message() -> PacedResponse:
        return PacedResponse(bytes(LARGE))

    return app


async def unread(port: int) -> Client:
    """A client that reads the head of its answer and nothing more."""
    client = await Client.of(port, get("/message"))
    assert await client.status() == 200
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def taken(client: Client) -> None:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await client.reader.readuntil(b"\r\n\r\n")
    await client.reader.readexactly(LARGE)


def test_other_requests_wait_for_their_turn_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeks, "PATIENCE_S", 0.1)

    async def run() -> None:
        async with serving(application()) as port:
            held = [await unread(port) for _ in range(PEEKS)]
            assert await (await Client.of(port, get("/message"))).status() == 503
            await taken(held[0])
            await taken(await unread(port))
            held[1].writer.transport.abort()
            for _ in range(2 * PEEKS):
                await taken(await unread(port))

    asyncio.run(run())


def test_a_slow_client_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_response, "SEND_S", 0.1)

    async def run() -> None:
        async with serving(application()) as port:
            held = [await unread(port) for _ in range(PEEKS)]
            last = await Client.of(port, get("/message"))
            assert await last.status() == 200
            for each in held:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await taken(each)
            last.writer.transport.abort()

    asyncio.run(run())
