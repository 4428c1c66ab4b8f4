"""Answers that hold a message: few at the same time and each bounded, so that they never fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from fastapi import HTTPException, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from pulsar_on_spark.broker.web.requests import BrokerServices
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.opened_entry import PayloadTooLargeError, open_entry

PEEKS: Final = 2
"""Messages that are read, decompressed and sent at once."""
PATIENCE_S: Final = 10.0
"""Time that a request waits for its turn."""
SEND_S: Final = 60.0
"""Time in which a client must read an answer: others wait for their turn meanwhile."""
LARGEST: Final = 3
"""A payload is decompressed to at most this many times `max_message_size`."""
_PIECE_BYTES: Final = 1 << 16
"""About this much is copied to the connection before its client takes some."""


def peek_turns() -> asyncio.Semaphore:
    """The turns of an application's requests for single messages."""
    return asyncio.Semaphore(PEEKS)


async def peek_turn(request: Request) -> AsyncIterator[None]:
    """Hold a turn until the answer was sent: for routes that answer with a message.

    Raises:
        HTTPException: 503, there was no turn within `PATIENCE_S`.
    """
    turns: asyncio.Semaphore = request.app.state.peek_turns
    try:
        await asyncio.wait_for(turns.acquire(), PATIENCE_S)
    except TimeoutError as error:
        raise HTTPException(503, f"{PEEKS} other messages are being looked at: try again.") from error
    try:
        yield
    finally:
        turns.release()


async def open_peeked(services: BrokerServices, at: Position, data: bytes) -> tuple[MessageMetadata, bytes]:
    """Metadata and payload of an entry, decompressed beside the event loop.

    Raises:
        HTTPException: 413, the payload is too large.
    """
    limit_bytes = LARGEST * services.settings.max_message_size
    try:
        return await asyncio.to_thread(open_entry, data, limit_bytes)
    except PayloadTooLargeError as error:
        raise HTTPException(
            413, f"Entry {at.ledger}:{at.entry}: {error} Read it with a consumer or a reader."
        ) from error


class PeekResponse(Response):
    """A payload, sent as fast as its client takes it."""

    media_type = "application/octet-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send headers and payload; after `SEND_S` give up, and close the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                payload = memoryview(self.body)
                for begin in range(0, len(payload), _PIECE_BYTES):
                    piece = bytes(payload[begin : begin + _PIECE_BYTES])
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
