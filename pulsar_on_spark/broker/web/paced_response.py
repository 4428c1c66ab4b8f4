"""Large responses, which are sent piece by piece and within a time limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

SEND_S: Final = 10.0
"""Time in which a client must read a large response, in seconds, plus one second for each MiB: other clients wait for
their turn meanwhile."""
_PIECE_BYTES: Final = 1 << 16
"""Bytes written to the connection before waiting for its client to read."""


class PacedResponse(Response):
    """A response that is sent as fast as its client reads it.

    Args:
        content: The body.
        given: Further arguments of `Response`.
    """

    media_type = "application/octet-stream"

    def __init__(self, content: bytes, **given: Any) -> None:
        super().__init__(content, **given)
        self._limit_s = SEND_S + len(content) / (1 << 20)
        self._sending: asyncio.Timeout | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send headers and body; close the connection if that takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limit_s) as self._sending:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                body = memoryview(self.body)
                for begin in range(0, len(body), _PIECE_BYTES):
                    piece = bytes(body[begin : begin + _PIECE_BYTES])
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        self._sending = None

    def cut(self) -> None:
        """Close the connection unless the client has read everything: other responses need the memory."""
        self._limit_s = 0.0
        if self._sending is not None:
            self._sending.reschedule(self._limit_s)
