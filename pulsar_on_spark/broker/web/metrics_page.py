"""The page of metrics that concurrent requests share: one for each would stall the broker and fill its memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

MAX_RESPONSES: Final = 10
"""Requests that wait for a page or read one at the same time: as many pages may be in memory."""
PAUSE_S: Final = 1.0
"""Time from the end of one page to the start of the next, in seconds: between them, the broker does other work."""


class TooManyResponsesError(Exception):
    """As many requests as allowed wait for a page or read one."""


class MetricsPage:
    """The page of metrics of one broker. Belongs to its event loop."""

    def __init__(self) -> None:
        self._responses = 0
        self._one = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None
        self._free_s = float("-inf")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Count a request until its response is sent.

        Raises:
            TooManyResponsesError: there are `MAX_RESPONSES` already.
        """
        if self._responses >= MAX_RESPONSES:
            raise TooManyResponsesError
        self._responses += 1
        try:
            yield
        finally:
            self._responses -= 1

    async def read(self, render: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return a page whose rendering begins after the call; requests that come until then share it.

        Args:
            render: Renders the page.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._render(render), name="metrics")
        return await asyncio.shield(self._next)

    async def _render(self, render: Callable[[], Awaitable[bytes]]) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._one:
            await asyncio.sleep(self._free_s - loop.time())
            self._next = None
            try:
                return await render()
            finally:
                self._free_s = loop.time() + PAUSE_S
