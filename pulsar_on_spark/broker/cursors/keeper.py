"""The cursors of a broker's subscriptions: owners in the main table, positions in the journal and the cursors table.

    open      the subscription record is committed; then the first cursor record of its epoch goes to the journal
    changed   a cursor record in the journal within a second, or at once for a caller of `wait_durable`
    snapshot  every few seconds a row of each cursor that moved, all in one commit
    reset     a new epoch in the main table, before the call returns
    release   a row of each cursor in one commit, then the subscription records that release them in another

State after a crash between any two steps, and how the next owner continues (`tests/broker/cursors/test_crashes.py`):

    after the subscription record of an open,      the next owner begins at the start in the record, with the ack holes
    before the epoch's first cursor record         of the last row; messages that Spark read beyond it are redelivered
    after acks, before their cursor record         no receipt was given: the messages are redelivered
    after a cursor record, before its row          the journal is recovered: its cursor records are copied to the table
    after a row, before the journal's trim         row and cursor record agree: the larger (epoch, n) counts
    after the row of a release, before the         the subscription is owned by a dead broker, and nothing is lost
    subscription record
    after the subscription record of a release     free: every slot at the mark-delete position, its holes in the row
    after the subscription record of a reset       the new position counts; records of the old epoch have no effect
    a commit whose outcome is unknown              the next check finds out whether the broker still owns the cursor

A broker that was believed dead and resumes writes under outdated epochs. It confirms nothing to its clients, because
its journal is fenced. Until a row with a newer epoch exists, its rows may still add acknowledgements that clients sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from pulsar_on_spark.broker.cursors import decisions
from pulsar_on_spark.broker.cursors.claimer import Claimer
from pulsar_on_spark.broker.cursors.decisions import (
    InitialPosition,
    Ownership,
    Request,
)
from pulsar_on_spark.broker.cursors.open_cursor import CursorReleasedError, OpenCursor
from pulsar_on_spark.broker.cursors.recorder import Recorder
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.model.errors import (
    ConsumerFencedError,
    JournalFencedError,
    PulsarpyError,
    SubscriptionNotFoundError,
)
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType

log = logging.getLogger(__name__)

SNAPSHOT_EVERY_S: Final = 5.0
"""Interval in seconds at which moved cursors go to the cursors table; until then, the journal keeps their records."""

_Key: TypeAlias = tuple[str, str]
_T = TypeVar("_T")


class CursorKeeper:
    """The cursors of one broker incarnation. Call all methods in the broker's event loop.

    Args:
        root: The open root that contains the topics.
        incarnation: This broker's incarnation, whose journal stores the cursor records.
        commits: The grouped commits to the metadata tables.
        on_lost: Called with a cursor that has another owner, or whose subscription or topic was deleted. It must
            disconnect the cursor's consumers; `cursor.lost` is the reason.
        snapshot_every_s: Interval in seconds at which moved cursors go to the cursors table.
    """

    def __init__(
        self,
        root: RootHandle,
        incarnation: Incarnation,
        commits: GroupedCommits,
        on_lost: Callable[[OpenCursor], None] = lambda cursor: None,
        *,
        snapshot_every_s: float = SNAPSHOT_EVERY_S,
    ) -> None:
        self._root = root
        self._incarnation = incarnation.id
        self._on_lost = on_lost
        self._snapshot_every_s = snapshot_every_s
        self._commits = commits
        self._claimer = Claimer(root, self._commits)
        self._recorder = Recorder(incarnation, self._commits)
        self._open: dict[_Key, OpenCursor] = {}
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saving: asyncio.Task[None] | None = None
        self._over: PulsarpyError | None = None

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def acquire_subscription(
        self,
        part: TopicPart,
        name: str,
        type_: SubscriptionType,
        start: InitialPosition,
        chain: LedgerChain,
        properties: Mapping[str, str] | None = None,
        most: int = 0,
    ) -> OpenCursor:
        """Acquire a subscription and return its cursor: create it, or become the owner of one without a live owner.

        If this broker already owns the subscription, its type changes to the requested one: the caller must make sure
        that no consumers of another type are connected. The call may take as long as a lease or a recovery.

        Args:
            part: The topic.
            name: The subscription.
            type_: The type that its consumers ask for.
            start: The start of a new subscription; a position outside the chain is moved into it.
            chain: The topic's current chain of ledgers. If it changes meanwhile, call `apply_chain` of the cursor.
            properties: Properties that are stored with a new subscription; None for none.
            most: Maximum number of subscriptions of the topic, checked for a new subscription; 0 for no limit.

        Raises:
            ServerRefusalError: the topic has reached the limit `most`.
            ConsumerBusyError: a Spark query or another broker's clients own the subscription.
            TopicNotFoundError: the topic was deleted.
            JournalFencedError: this broker's incarnation has ended.
            JournalUndecidedError, CorruptCursorError: the journal of the subscription's last broker cannot be read now.
            MetadataError, StorageError: the root cannot be read or written.
        """
        at = chain.clamp_position(start) if isinstance(start, Position) else start
        now = datetime.now(UTC)
        request = Request(part, name, type_, at, chain.end, self._incarnation, dict(properties or {}), now, most)
        return await self._complete(self._acquire(request, chain))

    async def reset_cursor(self, cursor: OpenCursor, position: Position, ack_set: int = 0, batch_size: int = 1) -> None:
        """Seek a cursor to a position and discard all acknowledgements; return once the new position is committed.

        The caller has disconnected all consumers, because acknowledgements during the reset are discarded too.

        Args:
            cursor: The cursor.
            position: The next entry to read; a position outside the chain is moved into it.
            ack_set: Bits of that entry's messages that are still to be read; 0 for all.
            batch_size: Number of messages in that entry; used only with an ack set.

        Raises:
            ConsumerFencedError: this broker no longer owns the subscription.
            SubscriptionNotFoundError: the subscription was deleted.
            MetadataError: the commit failed. If it took effect nevertheless, a later check ends the cursor as lost.
        """
        await self._complete(self._reset(cursor, position, ack_set, batch_size))

    async def release_subscriptions(self, cursors: Sequence[OpenCursor]) -> None:
        """Release subscriptions whose last consumers have disconnected; skip cursors that are already lost.

        Raises:
            MetadataError: a commit failed. This broker still owns the cursors whose `lost` is None; call this again.
        """
        works = [self._spawn(self._release(cursor)) for cursor in cursors]
        for outcome in await asyncio.gather(*map(asyncio.shield, works), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def delete_subscription(self, cursor: OpenCursor) -> None:
        """Delete a subscription that this broker owns.

        Raises:
            ConsumerFencedError: the subscription has another owner.
            MetadataError: the commit failed.
        """
        await self._complete(self._delete(cursor))

    async def save_cursors(self) -> None:
        """Write a row of each moved cursor to the cursors table now.

        Raises:
            MetadataError: the table cannot be written; the next snapshot includes the changes.
        """
        await self._recorder.snapshot([cursor for cursor in self._open.values() if not self._is_busy(cursor)])

    async def stop(self) -> None:
        """Release all subscriptions, before the incarnation is stopped (errors as `release_subscriptions`)."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
            self._saving = None
        await self.release_subscriptions(list(self._open.values()))

    def on_incarnation_ended(self, reason: str) -> None:
        """End all cursors of this broker: the broker that recovers the incarnation's journal continues with them.

        Args:
            reason: The reason why the incarnation has ended, for the error that waiting callers get.
        """
        self._over = JournalFencedError(f"This broker's incarnation is over ({reason}): subscribe again.")
        for cursor in list(self._open.values()):
            self._forget(cursor, self._over)
        if self._saving is not None:
            self._saving.cancel()

    # -- opening -------------------------------------------------------------------------------------------------------

    async def _acquire(self, request: Request, chain: LedgerChain) -> OpenCursor:
        key = (request.part.topic_id, request.name)
        async with self._lock(key):
            cursor = self._open.get(key)
            if cursor is not None:
                await self._change_type(cursor, request.type)
                return cursor
            start = await self._claimer.claim(request, chain)
            if self._over is not None:
                raise self._over
            cursor = OpenCursor(self._recorder, request.part, request.name, request.type, Cursor(chain, start))
            self._open[key] = cursor
            cursor.record_changes()
            if start.ack_holes:
                # The journal has no record of this epoch yet.
                await cursor.wait_durable()
            if self._saving is None:
                complaint = "Cursors could not be saved in the metadata, trying again"
                self._saving = asyncio.create_task(every(self._snapshot_every_s, self._save_and_check, complaint))
            return cursor

    async def _change_type(self, cursor: OpenCursor, type_: SubscriptionType) -> None:
        if cursor.type != type_:
            ownership = self._ownership(cursor)
            await self._commits.commit(lambda view, _: (decisions.decide_type(view, ownership, type_), None))
            cursor.type = type_

    # -- changing and releasing ----------------------------------------------------------------------------------------

    async def _reset(self, cursor: OpenCursor, position: Position, ack_set: int, batch_size: int) -> None:
        async with self._lock(_key(cursor)):
            if cursor.lost is not None:
                raise cursor.lost
            at, ownership = cursor.cursor.clamp_position(position), self._ownership(cursor)
            try:
                record = await self._commits.commit(lambda view, _: decisions.decide_reset(view, ownership, at))
            except (ConsumerFencedError, SubscriptionNotFoundError) as error:
                self._lose(cursor, error)
                raise
            start = Position(LedgerId(record.start_ledger), EntryId(record.start_entry))
            unread = ack_set if start == position else 0
            cursor.cursor.reset_position(start, record.start_epoch, unread, batch_size)
            cursor.record_changes()
            if unread:
                await cursor.wait_durable()

    async def _release(self, cursor: OpenCursor) -> None:
        async with self._lock(_key(cursor)):
            if cursor.lost is not None:
                return
            last, ownership = cursor.take_snapshot(), self._ownership(cursor)
            rows = [last.to_row()]
            try:
                await self._commits.commit(
                    lambda view, _: (decisions.decide_release(view, ownership, last), None), rows
                )
            except (ConsumerFencedError, SubscriptionNotFoundError) as error:
                self._lose(cursor, error)
            except BaseException:
                cursor.snapshot_failed()
                raise
            else:
                text = f"Subscription {cursor.name!r} on {cursor.part.name} was released: subscribe again."
                self._forget(cursor, CursorReleasedError(text))

    async def _delete(self, cursor: OpenCursor) -> None:
        async with self._lock(_key(cursor)):
            if cursor.lost is not None:
                return
            ownership = self._ownership(cursor)
            try:
                await self._commits.commit(lambda view, _: (decisions.decide_delete(view, ownership), None))
            except (ConsumerFencedError, SubscriptionNotFoundError) as error:
                self._lose(cursor, error)
                if isinstance(error, ConsumerFencedError):
                    raise
            else:
                text = f"Subscription {cursor.name!r} on {cursor.part.name} was deleted: subscribe again."
                self._forget(cursor, SubscriptionNotFoundError(text))

    def _ownership(self, cursor: OpenCursor) -> Ownership:
        return Ownership(cursor.part, cursor.name, self._incarnation, cursor.cursor.epoch)

    def _lose(self, cursor: OpenCursor, reason: PulsarpyError) -> None:
        if cursor.lost is None:
            log.warning("%s", reason, extra={"subscription": cursor.name, "topic": cursor.part.name})
            self._forget(cursor, reason)
            self._on_lost(cursor)

    def _forget(self, cursor: OpenCursor, reason: PulsarpyError) -> None:
        self._open.pop(_key(cursor), None)
        self._recorder.stop_recording(cursor)
        cursor.end_cursor(reason)

    # -- saving and checking -------------------------------------------------------------------------------------------

    async def _save_and_check(self) -> None:
        await self.save_cursors()
        await self._find_lost()

    async def _find_lost(self) -> None:
        """Find and end lost cursors: their subscription record was deleted, or names another owner or epoch."""
        before = [(cursor, self._ownership(cursor)) for cursor in self._open.values()]
        view = await asyncio.to_thread(self._root.store.view)
        for cursor, ownership in before:
            # A cursor that is being opened, reset or released has its own commit in progress.
            if cursor.lost is None and cursor.cursor.epoch == ownership.epoch and not self._is_busy(cursor):
                try:
                    decisions.require_ours(view, ownership)
                except (ConsumerFencedError, SubscriptionNotFoundError) as error:
                    self._lose(cursor, error)

    # ------------------------------------------------------------------------------------------------------------------

    def _lock(self, key: _Key) -> asyncio.Lock:
        """Return the lock that is held while a subscription changes its owner or position."""
        return self._locks.setdefault(key, asyncio.Lock())

    def _is_busy(self, cursor: OpenCursor) -> bool:
        lock = self._locks.get(_key(cursor))
        return lock is not None and lock.locked()

    async def _complete(self, work: Coroutine[object, object, _T]) -> _T:
        """Run work to its end even if its caller is cancelled: a partial run would leave an owner without a cursor."""
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _key(cursor: OpenCursor) -> _Key:
    return cursor.part.topic_id, cursor.name
