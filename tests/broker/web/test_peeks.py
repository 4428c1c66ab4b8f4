"""Few answers with messages are in memory at a time, even if clients do not read them."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Depends, FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_on_spark.broker.web import paced_response
from pulsar_on_spark.broker.web.admin import peeks
from pulsar_on_spark.broker.web.admin.peeks import PEEKS, PeekTurns, peek_turn
from pulsar_on_spark.broker.web.paced_response import PacedResponse
from pulsar_on_spark.broker.web.requests import PRINCIPAL
from pulsar_on_spark.security.principal import Principal

from .serving import Client, get, serving

MIB = 1 << 20
LARGE = 64 * MIB
"""Bytes that no socket buffers."""


def application() -> ASGIApp:
    app = FastAPI()
    app.state.peek_turns = PeekTurns()

    @app.get("/message", dependencies=[Depends(peek_turn)])
    async def message() -> PacedResponse:
        return PacedResponse(bytes(LARGE))

    async def of_role(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, PRINCIPAL: Principal(Headers(scope=scope)["role"])}, receive, send)

    return of_role


async def asking(port: int, role: str) -> Client:
    return await Client.of(port, get("/message", f"Role: {role}"))


async def unread(port: int, role: str) -> Client:
    """A client that reads the head of its answer and nothing more."""
    client = await asking(port, role)
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
            held = [await unread(port, f"role-{number}") for number in range(PEEKS)]
            assert await (await asking(port, "last")).status() == 503
            await taken(held[0])
            await taken(await unread(port, "last"))
            held[1].writer.transport.abort()
            for number in range(2 * PEEKS):
                await taken(await unread(port, f"role-{number}"))

    asyncio.run(run())


def test_a_slow_client_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_response, "SEND_S", -LARGE / MIB + 0.1)

    async def run() -> None:
        async with serving(application()) as port:
            held = [await unread(port, f"role-{number}") for number in range(PEEKS)]
            last = await asking(port, "last")
            assert await last.status() == 200
            for each in held:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await taken(each)
            last.writer.transport.abort()

    asyncio.run(run())


def test_many_slow_requests_of_a_role_leave_a_turn_to_others() -> None:
    async def run() -> None:
        async with serving(application()) as port:
            slow = [await unread(port, "slow"), *[await asking(port, "slow") for _ in range(20)]]
            await taken(await unread(port, "other"))
            for each in slow:
                each.writer.transport.abort()

    asyncio.run(asyncio.wait_for(run(), peeks.PATIENCE_S / 2))
