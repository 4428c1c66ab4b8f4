"""Large responses, which are sent piece by piece and within a time limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

SEND_S: Final = 60.0
"""Time in which a client must read a large response, in seconds: other clients wait for their turn meanwhile."""
_PIECE_BYTES: Final = 1 << 16
"""Bytes written to the connection before waiting for its client to read."""


class PacedResponse(Response):
    """A response that is sent as fast as its client reads it."""

    media_type = "application/octet-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send headers and body; close the connection if that takes longer than `SEND_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                body = memoryview(self.body)
                for begin in range(0, len(body), _PIECE_BYTES):
                    piece = bytes(body[begin : begin + _PIECE_BYTES])
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
