"""Back-pressure on large answers: one at a time for each client, and none while the client leaves too much unread.

A request of 50 bytes can ask for a list of a megabyte, and a client may send 5,000 such requests without reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class LargeAnswers:
    """The turns of one connection's large answers. Call all methods in the broker's event loop.

    Args:
        has_room: Returns True if the client reads its answers, or has disconnected.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._turns = asyncio.Lock()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Return a context in which the caller writes one large answer.

        The context begins when the previous answer's context has ended and the client has read enough.
        """
        async with self._turns:
            while not self._has_room():
                self._changed.clear()
                await self._changed.wait()
            yield

    def room_changed(self) -> None:
        """Let the waiting answer check `has_room` again: the client has read, or has disconnected."""
        self._changed.set()
