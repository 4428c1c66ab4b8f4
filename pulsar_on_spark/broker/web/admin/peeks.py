"""Responses that hold a message: limited in number and size, so that they never fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from fastapi import HTTPException, Request

from pulsar_on_spark.broker.web.requests import BrokerServices, Client
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.opened_entry import PayloadTooLargeError, open_entry
from pulsar_on_spark.security.principal import Principal

PEEKS: Final = 2
"""Maximum number of messages that are read, decompressed and sent concurrently."""
PATIENCE_S: Final = 30.0
"""Time that a request waits for its turn, in seconds: longer than a client has to read the largest message."""
LARGEST: Final = 3
"""Limit of a decompressed payload, as a multiple of `max_message_size`."""


class PeekTurns:
    """The turns of an application's requests for single messages.

    A client has one turn at a time. So other clients get a turn even if it sends many requests and reads the answers
    slowly.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(PEEKS)
        self._of_client = WeakValueDictionary[tuple[str, ...], asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, client: Principal) -> AsyncIterator[None]:
        """Return a context that waits for a client's turn to read a message, and holds the turn.

        Raises:
            TimeoutError: the turn did not come within `PATIENCE_S`.
        """
        own = self._of_client.setdefault(client.roles, asyncio.Lock())
        async with AsyncExitStack() as held:
            async with asyncio.timeout(PATIENCE_S):
                await held.enter_async_context(own)
                await held.enter_async_context(self._free)
            yield


async def peek_turn(request: Request, client: Client) -> AsyncIterator[None]:
    """Hold a turn until the response is sent: a dependency of routes that respond with a message.

    Raises:
        HTTPException: 503, no turn was free within `PATIENCE_S`.
    """
    turns: PeekTurns = request.app.state.peek_turns
    async with AsyncExitStack() as held:
        try:
            await held.enter_async_context(turns.turn(client))
        except TimeoutError as error:
            raise HTTPException(503, "Other messages are being read: try again.") from error
        yield


async def open_peeked(services: BrokerServices, at: Position, data: bytes) -> tuple[MessageMetadata, bytes]:
    """Return the metadata and the payload of the entry at a position; the payload is decompressed in a thread.

    Raises:
        HTTPException: 413, the payload is too large.
    """
    limit_bytes = LARGEST * services.settings.max_message_size
    try:
        return await asyncio.to_thread(open_entry, data, limit_bytes)
    except PayloadTooLargeError as error:
        raise HTTPException(
            413, f"Entry {at.ledger}:{at.entry} cannot be peeked: {error} Read it with a consumer or a reader."
        ) from error
