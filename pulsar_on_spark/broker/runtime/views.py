"""Metadata for an event loop: reads that many ask for at once are one read, in a thread."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.topic.catalog.root_handle import RootHandle


class Views:
    """The metadata of a root, for one event loop.

    Args:
        root: The root.
    """

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._next: asyncio.Future[View] | None = None
        self._is_reading = False

    async def view(self) -> View:
        """The metadata as it is now, or later; whoever asks while a read is under way shares the next one.

        Raises:
            MetadataError: it cannot be read.
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
                try:
                    # Durable: clients are told of what is read here.
                    view = await asyncio.to_thread(self._root.store.view, durable=True)
                except Exception as error:  # each who asked gets it
                    asked.set_exception(error)
                    asked.exception()
                else:
                    asked.set_result(view)
        finally:
            self._is_reading = False
