"""Responses that hold a message: limited in number and size, so that they never fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from fastapi import HTTPException, Request

from pulsar_on_spark.broker.web.requests import BrokerServices
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.opened_entry import PayloadTooLargeError, open_entry

PEEKS: Final = 2
"""Maximum number of messages that are read, decompressed and sent concurrently."""
PATIENCE_S: Final = 10.0
"""Time that a request waits for its turn, in seconds."""
LARGEST: Final = 3
"""Limit of a decompressed payload, as a multiple of `max_message_size`."""


def peek_turns() -> asyncio.Semaphore:
    """Create the semaphore that limits an application's requests for single messages."""
    return asyncio.Semaphore(PEEKS)


async def peek_turn(request: Request) -> AsyncIterator[None]:
    """Hold a turn until the response is sent: a dependency of routes that respond with a message.

    Raises:
        HTTPException: 503, no turn was free within `PATIENCE_S`.
    """
    turns: asyncio.Semaphore = request.app.state.peek_turns
    try:
        await asyncio.wait_for(turns.acquire(), PATIENCE_S)
    except TimeoutError as error:
        raise HTTPException(503, f"{PEEKS} other messages are being read: try again.") from error
    try:
        yield
    finally:
        turns.release()


async def open_peeked(services: BrokerServices, at: Position, data: bytes) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of an entry, decompressed in a thread.

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
