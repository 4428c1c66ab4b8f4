"""Back-pressure on large answers: one at a time for each client, and none while the client leaves too much unread.

A request of fifty bytes can ask for a list of a megabyte, and a client may send five thousand of them without reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class LargeAnswers:
    """The large answers of one connection. Belongs to the broker's event loop.

    Args:
        has_room: Returns True if the client reads its answers, or has disconnected.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._turns = asyncio.Lock()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of an answer, and write it in the block: the next answer waits until the block is left."""
        async with self._turns:
            while not self._has_room():
                self._changed.clear()
                await self._changed.wait()
            yield

    def room_changed(self) -> None:
        """Resume after the client has read or disconnected."""
        self._changed.set()
