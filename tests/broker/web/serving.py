"""An application served over HTTP as the broker serves its own, and clients that send any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from pulsar_on_spark.broker.web.http_protocol import HttpLimits, LimitedHttp


@asynccontextmanager
async def serving(app: ASGIApp, total: int = 0, per_address: int = 0) -> AsyncIterator[int]:
    """The port."""
    limits = HttpLimits(total, per_address)
    config = uvicorn.Config(
        app,
        port=0,
        lifespan="off",
        http=cast(Any, partial(LimitedHttp, limits, "there is none with TLS")),
        ws="none",
        log_config=None,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, port: int, said: bytes = b"") -> Client:
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        made.writer.write(said)
        await made.writer.drain()
        return made

    async def status(self) -> int:
        return int((await self.reader.readline()).split()[1])

    async def is_closed(self) -> bool:
        """True if the server hangs up within a time that is long enough on any machine."""
        async with asyncio.timeout(30):
            try:
                while await self.reader.read(1 << 20):
                    pass
            except ConnectionResetError:
                pass
        return True


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()
