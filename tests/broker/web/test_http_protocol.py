"""Slow and idle HTTP clients, against uvicorn as the broker runs it."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from pulsar_on_spark.broker.web import http_protocol
from pulsar_on_spark.broker.web.paced_response import PacedResponse

from .serving import Client, get, serving

SOON_S = 0.3
"""In place of the limits of a broker."""
LARGE = 64 << 20
"""Bytes that no socket buffers."""


class App:
    """Answers `/large` with many bytes, `/held` when it may, everything else at once; bodies are read."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.is_held = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        if scope["path"] == "/held":
            self.is_held.set()
            await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(LARGE if scope["path"] == "/large" else 2)})


SLOW = get("/x")[:-2]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_S", "BODY_S", "TAKE_S"):
        monkeypatch.setattr(http_protocol, name, SOON_S)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "said",
    [
        b"",
        SLOW,
        get("/x", "Content-Length: 10") + b"123",
        get("/x") + SLOW,
        get("/x", "Content-Length: 1") + b"1" + SLOW,
    ],
    ids=["nothing", "headers", "body", "later headers", "headers behind a body"],
)
def test_a_client_that_does_not_finish_a_request_is_disconnected(said: bytes) -> None:
    async def run() -> None:
        async with serving(App()) as port:
            assert await (await Client.of(port, said)).is_closed()

    asyncio.run(run())


async def drip(client: Client) -> None:
    while True:
        await asyncio.sleep(SOON_S / 5)
        client.writer.write(b"X-A: b\r\n")
        await client.writer.drain()


@pytest.mark.usefixtures("soon")
def test_a_few_bytes_do_not_extend_the_timeout() -> None:
    async def run() -> None:
        async with serving(App()) as port:
            client = await Client.of(port, SLOW)
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(drip(client), 30)

    asyncio.run(run())


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_does_not_read_an_answer_is_disconnected(connection: str) -> None:
    async def run() -> None:
        async with serving(App()) as port:
            client = await Client.of(port, get("/large", f"Connection: {connection}"))
            assert await client.status() == 200
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(3 * SOON_S)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(client.reader.readexactly(LARGE), 30)

    asyncio.run(run())


@pytest.mark.usefixtures("soon")
def test_an_answer_that_takes_long_and_a_connection_that_is_kept_are_left_alone() -> None:
    async def run() -> None:
        app = App()
        async with serving(app) as port:
            kept, held = await Client.of(port, get("/x")), await Client.of(port, get("/held"))
            await app.is_held.wait()
            assert await kept.status() == 200
            await asyncio.sleep(3 * SOON_S)
            app.may_answer.set()
            assert await held.status() == 200
            await kept.reader.readuntil(b"\0\0\r\n0\r\n\r\n")
            kept.writer.write(get("/x"))
            assert await kept.status() == 200

    asyncio.run(run())


@pytest.mark.parametrize("limits", [{"total": 5}, {"per_address": 5}])
def test_new_clients_replace_those_that_wait(limits: dict[str, int]) -> None:
    async def run() -> None:
        async with serving(App(), **limits) as port:
            slow = [await Client.of(port, SLOW) for _ in range(20)]
            for _ in range(3):
                client = await Client.of(port, get("/x"))
                assert await client.status() == 200
            for each in slow[:15]:
                assert await each.is_closed()
            slow[-1].writer.write(b"\r\n")
            assert await slow[-1].status() == 200

    asyncio.run(run())


@pytest.mark.parametrize("limits", [{"total": 5}, {"per_address": 5}])
def test_new_clients_replace_those_that_do_not_read(limits: dict[str, int]) -> None:
    app = FastAPI()

    @app.get("/paced")
    async def paced() -> PacedResponse:
        return PacedResponse(bytes(LARGE))

    @app.get("/x")
    async def short() -> str:
        return "x"

    async def run() -> None:
        async with serving(app, **limits) as port:
            slow = [await Client.of(port, get("/paced")) for _ in range(5)]
            for each in slow:
                assert await each.status() == 200
                each.writer.transport.pause_reading()  # type: ignore[attr-defined]
            try:
                async with asyncio.timeout(30):
                    while await (await Client.of(port, get("/x"))).status() != 200:
                        pass  # until the sockets' buffers are full
            finally:
                for each in slow:
                    each.writer.transport.abort()

    asyncio.run(run())


@pytest.mark.parametrize("limits", [{"total": 5}, {"per_address": 5}])
def test_if_all_connections_are_busy_only_probes_are_answered(limits: dict[str, int]) -> None:
    async def run() -> None:
        app = App()
        async with serving(app, **limits) as port:
            held = []
            for _ in range(5):
                held.append(await Client.of(port, get("/held")))
                await app.is_held.wait()
                app.is_held.clear()
            assert await (await Client.of(port, get("/x"))).status() == 503
            assert await (await Client.of(port, get("/status.html"))).status() == 200
            app.may_answer.set()
            assert [await each.status() for each in held] == [200] * 5
            assert await (await Client.of(port, get("/x"))).status() == 200

    asyncio.run(run())
