"""Many requests for metrics cost the broker one page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fastapi import FastAPI

from pulsar_on_spark.broker.web import metrics, metrics_page
from pulsar_on_spark.broker.web.metrics_page import MAX_PAGES, PAUSE_S, MetricsPages
from tests.kit.waiting import until

from .serving import Client, get, serving

LIMIT_S = 60
LARGE = 16 << 20
"""Bytes that no socket buffers."""


class Pages:
    """Renders pages "1", "2" and so on, each when `go` is set."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.go = asyncio.Event()

    async def render(self) -> bytes:
        self.begun.append(asyncio.get_running_loop().time())
        number = len(self.begun)
        await self.go.wait()
        return b"%d" % number


async def taken(pages: MetricsPages, render: Callable[[], Awaitable[bytes]]) -> bytes:
    return bytes((await pages.respond(render)).body)


def test_requests_share_a_page_that_begins_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        shared, pages = MetricsPages(), Pages()
        early = [asyncio.create_task(taken(shared, pages.render)) for _ in range(3)]
        while not pages.begun:
            await asyncio.sleep(0)
        late = [asyncio.create_task(taken(shared, pages.render)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(pages.begun) == 1, "one at a time"
        pages.go.set()
        assert await asyncio.gather(*early, *late) == [b"1"] * 3 + [b"2"] * 3
        assert pages.begun[1] - pages.begun[0] >= PAUSE_S

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def test_a_cancelled_request_and_a_failed_page_do_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "PAUSE_S", 0.0)

    async def fails() -> bytes:
        raise OSError("disk")

    async def scene() -> None:
        shared, pages = MetricsPages(), Pages()
        pages.go.set()
        with pytest.raises(OSError, match="disk"):
            await taken(shared, fails)
        given_up = asyncio.create_task(taken(shared, pages.render))
        other = asyncio.create_task(taken(shared, pages.render))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await other == b"1"
        assert await taken(shared, pages.render) == b"2"

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


def application() -> FastAPI:
    app = FastAPI()
    app.include_router(metrics.router)
    app.state.metrics_pages = MetricsPages()
    app.state.services = app.state.broker_health = None  # the page is not made of them
    return app


async def unread(port: int) -> Client:
    """A client that does not read its answer."""
    client = await Client.of(port, get("/metrics"))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


def test_slow_readers_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "PAUSE_S", 0.0)
    rendered: list[int] = []

    async def render(*_: object) -> bytes:
        rendered.append(LARGE)
        return bytes(LARGE)

    monkeypatch.setattr(metrics, "_render", render)

    async def scene() -> None:
        async with serving(application()) as port:
            slow = []
            for number in range(1, 2 * MAX_PAGES):
                slow.append(await unread(port))
                await until(lambda number=number: len(rendered) == number)
            prompt = await unread(port)
            await read(prompt)
            for late in slow[:MAX_PAGES]:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await read(late)
            await read(slow[MAX_PAGES])
            for other in slow:
                other.writer.transport.abort()

    asyncio.run(asyncio.wait_for(scene(), LIMIT_S))


async def read(client: Client) -> None:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await client.status() == 200
    await client.reader.readuntil(b"\r\n\r\n")
    await client.reader.readexactly(LARGE)
