"""Pages of metrics that concurrent requests share: a page for each would stall the broker and fill its memory.

Every request gets a page. A client must have read its page before ten newer ones are rendered, which takes ten seconds
or more; slower clients are disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from weakref import WeakSet

from pulsar_on_spark.broker.services.exposition import CONTENT_TYPE
from pulsar_on_spark.broker.web.paced_response import PacedResponse

MAX_PAGES: Final = 10
"""Maximum number of pages in memory: clients that still read an older page are disconnected."""
PAUSE_S: Final = 1.0
"""Time from the end of one page to the start of the next, in seconds: between them, the broker does other work."""


class _Page(NamedTuple):
    """A rendered page.

    Attributes:
        content: The page's text in Prometheus' format.
        responses: The responses that are not sent yet.
    """

    content: bytes
    responses: WeakSet[PacedResponse]


class MetricsPages:
    """The pages of metrics of one broker. Call all methods in its event loop."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: asyncio.Task[_Page] | None = None
        self._free_s = float("-inf")
        self._responses: deque[WeakSet[PacedResponse]] = deque()
        """The responses of the last pages, oldest first."""

    async def respond(self, render: Callable[[], Awaitable[bytes]]) -> PacedResponse:
        """Return a response with a page whose rendering begins after the call; calls before it begins share the page.

        Args:
            render: Returns the text of a new page.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._render(render), name="metrics")
        page = await asyncio.shield(self._next)
        response = PacedResponse(page.content, media_type=CONTENT_TYPE)
        page.responses.add(response)
        return response

    async def _render(self, render: Callable[[], Awaitable[bytes]]) -> _Page:
        loop = asyncio.get_running_loop()
        async with self._one:
            await asyncio.sleep(self._free_s - loop.time())
            self._next = None
            try:
                page = _Page(await render(), WeakSet())
            finally:
                self._free_s = loop.time() + PAUSE_S
        self._responses.append(page.responses)
        if len(self._responses) > MAX_PAGES:
            for late in self._responses.popleft():
                late.cut()
        return page
