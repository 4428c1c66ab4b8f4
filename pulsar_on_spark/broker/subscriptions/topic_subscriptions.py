"""The subscriptions of a loaded topic: acquired for their first consumer, released after the last one is gone.

The broker owns a durable subscription while it has consumers and for `RELEASE_AFTER_S` after, so that a client that
reconnects at once finds it loaded. An operation that awaits something holds the lock of the subscription's name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from pulsar_on_spark.broker.cursors.decisions import InitialPosition
from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.subscriptions.consumer import Consumer, MemoryCursor
from pulsar_on_spark.broker.subscriptions.subscribe_request import SubscribeRequest, memory_cursor
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.subscriptions.subscription_limits import (
    SubscribeRates,
    SubscriptionLimits,
    check_limits,
    set_rate,
)
from pulsar_on_spark.broker.subscriptions.subscription_views import SeenTopic, SubscriptionViews
from pulsar_on_spark.model.errors import ConsumerBusyError, PulsarpyError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType

log = logging.getLogger(__name__)

RELEASE_AFTER_S: Final = 1.0
"""Time after which a durable subscription without consumers is released, in seconds."""
FORGET_AFTER_S: Final = 30.0
"""Time for which a non-durable subscription without consumers is kept after a seek, in seconds: its client is about to
reconnect."""


class SubscribedTopic(SeenTopic, Protocol):
    """The part of a topic that its subscriptions use.

    Attributes:
        keeps_entries: True to cache stored entries in memory: a subscription is loaded, so consumers will read them.
    """

    keeps_entries: bool


class TopicSubscriptions:
    """The subscriptions of one topic. Call all methods in the broker's event loop.

    Args:
        topic: The topic.
        keeper: Acquires, stores and releases the durable cursors.
        reader: The reader of the topic's log.
        limits: The limits of subscriptions and consumers.
    """

    def __init__(
        self, topic: SubscribedTopic, keeper: CursorKeeper, reader: EntryReader, limits: SubscriptionLimits
    ) -> None:
        self._topic = topic
        self._keeper = keeper
        self._limits = limits
        self._rate = Throttle()
        self._subscribe_rates = SubscribeRates()
        self._open: dict[str, Subscription] = {}
        self._views = SubscriptionViews(topic, reader, self._open)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_ended = False

    @property
    def is_empty(self) -> bool:
        """True if no subscription is loaded."""
        return not self._open

    @property
    def all(self) -> list[Subscription]:
        """The loaded subscriptions."""
        return list(self._open.values())

    def apply_limits(self, limits: SubscriptionLimits) -> None:
        """Apply new limits; connected consumers stay connected."""
        self._limits = limits
        self._subscribe_rates.set_rate(limits.subscribe_rate)
        set_rate(self._rate, limits.topic_rate)
        for subscription in self._open.values():
            subscription.apply_limits(limits.dispatch)
            set_rate(subscription.deliveries.rate, limits.subscription_rate)

    def get(self, name: str) -> Subscription | None:
        """Return the loaded subscription of a name; None if it is not loaded."""
        return self._open.get(name)

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def subscribe(self, consumer: Consumer, request: SubscribeRequest) -> Subscription:
        """Connect a consumer, and return its subscription, which is created or acquired if necessary.

        Raises:
            ConsumerBusyError: Spark or another broker owns it, or it has consumers of another type, or it is Exclusive
                and has a consumer.
            ConsumerAssignError: the consumer's hash ranges are invalid or overlap another consumer's.
            ServerRefusalError: a limit is reached, or the topic or the connection is being closed.
            PulsarpyError: as `CursorKeeper.acquire_subscription`.
        """
        self._subscribe_rates.check(consumer, self._topic.part.name)
        async with self._lock(request.name):
            self._require_open()
            subscription = self._open.get(request.name)
            if subscription is not None and subscription.kept.lost is not None:
                await self._drop(subscription)
                subscription = None
            self._check_limits(subscription, request)
            if subscription is None:
                subscription = await self._open_one(request)
            else:
                await self._fit(subscription, request)
            try:
                if consumer.peer.is_closed or self._is_closed:
                    raise ServerRefusalError(
                        ServerError.ServiceNotReady,
                        f"Topic {self._topic.part.name} or the connection was closed meanwhile: subscribe again.",
                    )
                subscription.add(consumer)
            finally:
                self._settle(subscription)
            return subscription

    async def create_subscription(
        self, name: str, start: InitialPosition = "earliest", properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a durable subscription unless it exists.

        Args:
            name: The subscription.
            start: The start position of a new subscription.
            properties: Properties that are stored with a new subscription; None for none.

        Raises:
            ServerRefusalError: a limit is reached, or the topic is being closed.
            PulsarpyError: as `CursorKeeper.acquire_subscription`, except that a subscription of another owner counts as
                existing.
        """
        request = SubscribeRequest(name, "Shared", start=start, properties=properties or {})
        async with self._lock(name):
            self._require_open()
            if name in self._open:
                return
            self._check_limits(None, request)
            try:
                self._settle(await self._open_one(request))
            except ConsumerBusyError:
                return

    async def acquire_subscription(self, name: str, type_: SubscriptionType) -> Subscription:
        """Return an existing durable subscription, acquired without a consumer; it is released soon if none subscribes.

        Args:
            name: The subscription.
            type_: The subscription's current type.

        Raises:
            ServerRefusalError: the topic is being closed.
            PulsarpyError: as `CursorKeeper.acquire_subscription`.
        """
        async with self._lock(name):
            self._require_open()
            subscription = self._open.get(name)
            if subscription is not None and subscription.kept.lost is not None:
                await self._drop(subscription)
                subscription = None
            if subscription is None:
                subscription = await self._open_one(SubscribeRequest(name, type_))
            self._settle(subscription)
            return subscription

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Remove a consumer that has closed or lost its connection."""
        if subscription.remove(consumer) and self._open.get(subscription.name) is subscription:
            self._settle(subscription)

    async def seek(self, subscription: Subscription, position: Position) -> None:
        """Disconnect all consumers and move the cursor; a durable cursor is committed to Delta on return.

        Raises:
            PulsarpyError: as `CursorKeeper.reset_cursor`, or the subscription is no longer loaded.
        """
        async with self._lock(subscription.name):
            self._require_same(subscription)
            subscription.disconnect_all(for_seek=True)
            try:
                await self._views.show(subscription, subscription.reads_compacted)
                if isinstance(subscription.kept, OpenCursor):
                    await self._keeper.reset_cursor(subscription.kept, position)
                elif isinstance(subscription.kept, MemoryCursor):
                    subscription.kept.reset_position(position)
            finally:
                subscription.on_cursor_reset()
                self._settle(subscription, after_seek=True)

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer | None = None, *, force: bool = False
    ) -> None:
        """Delete the subscription on request of one of its consumers or of an operator.

        Args:
            subscription: The subscription.
            consumer: The consumer that requests it; None for an operator.
            force: True to disconnect other consumers.

        Raises:
            ServerRefusalError: other consumers are connected, and `force` is false.
            PulsarpyError: as `CursorKeeper.delete_subscription`.
        """
        async with self._lock(subscription.name):
            self._require_same(subscription)
            if not force and any(each is not consumer for each in subscription.consumers):
                raise ServerRefusalError(
                    ServerError.MetadataError,
                    f"Subscription {subscription.name!r} on {subscription.part.name} has other consumers: close them "
                    "first.",
                )
            # Consumers stay connected until the commit: if it fails, nothing has changed for them.
            if isinstance(subscription.kept, OpenCursor):
                await self._keeper.delete_subscription(subscription.kept)
            if consumer is not None:
                subscription.remove(consumer)
                consumer.is_closed = True
            subscription.disconnect_all()
            await self._drop(subscription)

    # -- the topic -----------------------------------------------------------------------------------------------------

    def on_entries_grew(self) -> None:
        """Deliver entries that became readable."""
        for subscription in self._open.values():
            subscription.on_entries_grew()

    def on_chain_changed(self) -> None:
        """Adapt the subscriptions to a change of the topic's chain of ledgers."""
        for subscription in self._open.values():
            if not self._views.update_subscription(subscription):
                self._renew(subscription)

    def on_topic_ended(self) -> None:
        """Note the end of a terminated topic, for loaded subscriptions and for those loaded later."""
        self._is_ended = True
        for subscription in self._open.values():
            subscription.on_topic_ended()

    def on_cursor_lost(self, cursor: OpenCursor) -> None:
        """Disconnect the consumers of a cursor that was taken over: they reconnect and learn its new owner."""
        subscription = self._open.get(cursor.name)
        if subscription is not None and subscription.kept is cursor:
            subscription.disconnect_all()
            self._spawn(self._forget(subscription))

    async def close(self) -> None:
        """Disconnect all consumers and release all subscriptions.

        Raises:
            MetadataError: a commit failed; the next owner recovers cursors that could not be released.
        """
        self._is_closed = True
        self._views.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        released = self.all
        for subscription in released:
            subscription.disconnect_all()
            await self._drop(subscription)
        kept = [subscription.kept for subscription in released]
        await self._keeper.release_subscriptions([cursor for cursor in kept if isinstance(cursor, OpenCursor)])

    # ------------------------------------------------------------------------------------------------------------------

    async def _open_one(self, request: SubscribeRequest) -> Subscription:
        topic, name = self._topic, request.name
        compacted = await self._views.newest(request.read_compacted)
        entries, chain = self._views.of(compacted)
        if request.is_durable:
            kept: OpenCursor | MemoryCursor = await self._keeper.acquire_subscription(
                topic.part, name, request.type, request.start, chain, request.properties, self._limits.subscriptions
            )
            entries, chain = self._views.of(compacted)  # the chain may have changed meanwhile
            kept.cursor.apply_chain(chain)
        else:
            kept = memory_cursor(topic.part, chain, request)
        opened = Subscription(
            topic.part, name, request.type, kept, entries, chain, self._limits.dispatch, request.key_shared
        )
        opened.deliveries.compacted, opened.reads_compacted = compacted, request.read_compacted
        opened.deliveries.on_failed_read = lambda: self._renew(opened)
        opened.deliveries.shared_rate = self._rate
        set_rate(opened.deliveries.rate, self._limits.subscription_rate)
        self._open[name] = opened
        self._topic.keeps_entries = True
        if self._is_ended:
            opened.on_topic_ended()
        return opened

    def _renew(self, subscription: Subscription) -> None:
        """Renew the view of a subscription that reads compacted: its compaction may have been replaced."""
        if subscription.reads_compacted:
            subscription.is_renewed.clear()
            self._spawn(self._views.renew_view(subscription, self._lock(subscription.name)))

    async def _fit(self, subscription: Subscription, request: SubscribeRequest) -> None:
        """Adapt a loaded subscription to a request.

        Raises:
            ConsumerBusyError: the type, the division of keys or the view differs from that of connected consumers.
            ServerRefusalError: the request is for a durable subscription and this is not, or the other way round.
            PulsarpyError: as `newest_compaction` and `CursorKeeper.acquire_subscription`.
        """
        if request.is_durable is not isinstance(subscription.kept, OpenCursor):
            kind = "not durable" if request.is_durable else "durable"
            raise ServerRefusalError(
                ServerError.NotAllowedError,
                f"Subscription {subscription.name!r} on {subscription.part.name} is {kind}: use another name.",
            )
        if request.read_compacted is not subscription.reads_compacted and subscription.consumers:
            kind = "compacted" if subscription.reads_compacted else "not compacted"
            raise ConsumerBusyError(
                f"Subscription {subscription.name!r} on {subscription.part.name} has consumers that read {kind}: "
                "subscribe in the same way, or close them first."
            )
        subscription.change_type(request.type, request.key_shared)
        if not subscription.consumers and (request.read_compacted or subscription.reads_compacted):
            await self._views.show(subscription, request.read_compacted)
        if isinstance(subscription.kept, OpenCursor) and subscription.kept.type != request.type:
            await self._keeper.acquire_subscription(
                subscription.part, subscription.name, request.type, request.start, self._topic.chain, request.properties
            )

    def _settle(self, subscription: Subscription, *, after_seek: bool = False) -> None:
        """Start the release timer if the last consumer has left; cancel it if there are consumers."""
        name = subscription.name
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if subscription.consumers:
            return
        is_durable = isinstance(subscription.kept, OpenCursor)
        delay_s = RELEASE_AFTER_S if is_durable else FORGET_AFTER_S if after_seek else 0.0
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(delay_s, lambda: self._spawn(self._release_idle(subscription)))

    async def _release_idle(self, subscription: Subscription) -> None:
        async with self._lock(subscription.name):
            if self._open.get(subscription.name) is not subscription or subscription.consumers:
                return
            if isinstance(subscription.kept, OpenCursor):
                try:
                    await self._keeper.release_subscriptions([subscription.kept])
                except PulsarpyError as error:
                    name, topic = subscription.name, self._topic.part.name
                    where = {"subscription": name, "topic": topic}
                    log.warning("Subscription %r of %s: %s", name, topic, error, extra=where)
                    self._settle(subscription)
                    return
            await self._drop(subscription)

    async def _forget(self, subscription: Subscription) -> None:
        async with self._lock(subscription.name):
            if self._open.get(subscription.name) is subscription:
                await self._drop(subscription)

    async def _drop(self, subscription: Subscription) -> None:
        timer = self._timers.pop(subscription.name, None)
        if timer is not None:
            timer.cancel()
        del self._open[subscription.name]
        self._topic.keeps_entries = bool(self._open)
        await subscription.close()

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"Topic {self._topic.part.name} is being closed by this broker: look it up again.",
            )

    def _require_same(self, subscription: Subscription) -> None:
        self._require_open()
        if self._open.get(subscription.name) is not subscription:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"Subscription {subscription.name!r} on {self._topic.part.name} was closed: subscribe again.",
            )

    def _check_limits(self, subscription: Subscription | None, request: SubscribeRequest) -> None:
        check_limits(
            self._limits,
            self._topic.part.name,
            request,
            consumers=sum(len(loaded.consumers) for loaded in self._open.values()),
            of_subscription=len(subscription.consumers) if subscription is not None else None,
        )
