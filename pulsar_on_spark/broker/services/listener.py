"""Hands on what the broker's journal says: entries to the publish path, cursors' records to their keeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.topic.managed_ledger.incarnation.listener import Appended


class JournalListener:
    """The broker's `IncarnationListener`; it comes before the incarnation, and the keeper after that.

    Args:
        path: The publish path.
        hang_up: Disconnects all clients.

    Attributes:
        over: Done with the reason when the incarnation is over.
        keeper: The keeper of cursors, once there is one.
    """

    def __init__(self, path: PublishPath, hang_up: Callable[[], None]) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.keeper: CursorKeeper | None = None
        self._path = path
        self._hang_up = hang_up

    def acknowledged(self, entries: Sequence[Appended]) -> None:
        """See `IncarnationListener`."""
        self._path.acknowledged(entries)

    def cursors_acknowledged(self, contexts: Sequence[object]) -> None:
        """See `IncarnationListener`."""
        assert self.keeper is not None, "nobody else appends cursors"
        self.keeper.cursors_acknowledged(contexts)

    def unknown(self, contexts: Sequence[object]) -> None:
        """See `IncarnationListener`."""
        if self.keeper is not None:
            self.keeper.unknown(contexts)
        self._path.unknown([each for each in contexts if isinstance(each, Appended)])

    def room(self) -> None:
        """See `IncarnationListener`."""
        self._path.room()
        if self.keeper is not None:
            self.keeper.room()

    def ended(self, reason: str) -> None:
        """See `IncarnationListener`: nothing can be acknowledged any more, and clients find who serves them now."""
        self._hang_up()
        if self.keeper is not None:
            self.keeper.ended(reason)
        if not self.over.done():
            self.over.set_result(reason)
