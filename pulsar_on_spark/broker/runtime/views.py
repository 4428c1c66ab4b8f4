"""Views of the metadata for an event loop: concurrent requests share one read in a thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pulsar_on_spark.metadata.state import DurableView, RecentView
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

FRESH_FOR_S: Final = 0.1
"""Time for which a view of a root in a directory is fresh, in seconds."""


class Views:
    """The metadata of a root, for one event loop.

    Args:
        root: The open root.
    """

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._next: asyncio.Future[DurableView] | None = None
        self._is_reading = False
        self._recent: DurableView | None = None
        self._recent_since_s = float("-inf")

    @property
    def recent(self) -> RecentView:
        """The view that was read last, to authorize clients; a broker reads one each second (`TopicWatch`)."""
        assert self._recent is not None, "a broker reads a view before it serves"
        return self._recent

    @property
    def is_fresh(self) -> bool:
        """True if a lookup may name another broker by the recent view: that broker may have given the topic up since.

        On an object store every view is fresh enough, because a read is a request, and waits while the store is away.
        """
        age_s = asyncio.get_running_loop().time() - self._recent_since_s
        return age_s < FRESH_FOR_S or not isinstance(self._root.place, Path)

    async def view(self) -> DurableView:
        """Return a view that is at least as new as this call; calls during a read share the next one.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        wanted = self._next
        if not self._is_reading:
            self._is_reading = True
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(wanted)

    async def _read(self) -> None:
        try:
            while (asked := self._next) is not None:
                self._next = None
                begun_s = asyncio.get_running_loop().time()
                try:
                    # Durable, because clients see the view: its changes must survive a crash.
                    view = await asyncio.to_thread(lambda: self._root.store.view(durable=True))
                except Exception as error:  # raised in every caller
                    asked.set_exception(error)
                    asked.exception()
                else:
                    self._recent, self._recent_since_s = view, begun_s
                    asked.set_result(view)
        finally:
            self._is_reading = False
