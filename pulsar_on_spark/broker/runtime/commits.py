"""Group commit of metadata for all topics and subscriptions: requests that arrive during a commit share the next one.

One round appends all cursor rows of its group in one commit, and then makes all changes of records in another. If a
change is refused on the current view, only that change fails; the others are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore

T = TypeVar("T")
Decide = Callable[[View, Cursors], tuple[Change | None, T]]
"""A function of the current metadata and cursor rows that returns the change to commit (None for no change) and a
result for its caller."""

MAX_GROUP: Final = 256
"""Maximum number of requests per round: each row of a commit lists all keys, so a commit's size grows quadratically."""
LINGER_S: Final = 0.001
"""Pause between two rounds, in seconds: callers that continue after the first round join the second."""


@dataclass(slots=True)
class _Asked(Generic[T]):
    rows: Sequence[CursorRow]
    decide: Decide[T] | None
    done: asyncio.Future[T | None]
    result: T | None = None
    error: Exception | None = None


class GroupedCommits:
    """The group commit of a metadata store. Call all methods in one event loop; each commit runs in a thread."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._waiting: list[_Asked[Any]] = []
        self._running: asyncio.Task[None] | None = None

    async def append(self, rows: Sequence[CursorRow]) -> None:
        """Append cursor rows durably.

        Raises:
            MetadataError: the table could not be written; it may or may not contain the rows.
        """
        await self._ask(rows, None)

    async def commit(self, decide: Decide[T], rows: Sequence[CursorRow] = ()) -> T:
        """Append rows durably, commit the change of records that `decide` returns, and return its result.

        Args:
            decide: Returns the change and the result; called in a thread, and called again after each conflict. Its
                exceptions are raised here. The cursors that it gets are the durable rows, read after the view.
            rows: Cursor rows to append first.

        Raises:
            MetadataError: the commit failed; it may or may not have taken effect.
        """
        return await self._ask(rows, decide)  # type: ignore[return-value]

    async def _ask(self, rows: Sequence[CursorRow], decide: Decide[T] | None) -> T | None:
        asked = _Asked(rows, decide, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(asked.done)

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
                await asyncio.to_thread(self._round, group)
                for asked in group:
                    _settle(asked)
                await asyncio.sleep(LINGER_S)
        finally:
            self._running = None

    def _round(self, group: Sequence[_Asked[Any]]) -> None:
        """Commit a group of requests, in a thread; errors are stored in the requests, never raised."""
        rows = [row for asked in group for row in asked.rows]
        if rows:
            try:
                self._store.append_cursors(rows)
            except Exception as error:
                for asked in group:
                    asked.error = error if asked.rows else None
        deciding = [asked for asked in group if asked.decide is not None and asked.error is None]
        if not deciding:
            return
        try:
            self._store.commit(lambda view: self._decided(view, deciding))
        except Exception as error:
            for asked in deciding:
                asked.error = asked.error or error

    def _decided(self, view: View, deciding: Sequence[_Asked[Any]]) -> Change | None:
        cursors = self._store.cursors(durable=True)
        changes = []
        for asked in deciding:
            assert asked.decide is not None
            asked.error = None
            try:
                change, asked.result = asked.decide(view, cursors)
            except Exception as error:  # this attempt leaves the request out; the next one decides it again
                asked.error = error
            else:
                if change is not None:
                    changes.append(change)
        if not changes:
            return None
        moved: dict[str, int | None] = {}
        for change in changes:
            moved |= change.keys
        return Change(
            puts=[record for change in changes for record in change.puts],
            deletes=[record for change in changes for record in change.deletes],
            keys=moved,
        )


def _settle(asked: _Asked[Any]) -> None:
    if asked.done.done():
        return
    if asked.error is None:
        asked.done.set_result(asked.result)
    else:
        asked.done.set_exception(asked.error)
        asked.done.exception()  # the caller may have been cancelled
