"""The loaded topics of a broker, and operations of operators on topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final
from weakref import WeakValueDictionary

from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.runtime.topic_work import WorkStatus
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.compaction import Compactions
from pulsar_on_spark.broker.topics.creation_rate import CreationRate
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentTopic
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topic_creation import TopicCreation, not_there, require_namespace
from pulsar_on_spark.broker.topics.topic_policies import default_policies, topic_limits
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.model.errors import SchemaNotFoundError, TopicBusyError, TopicNotFoundError
from pulsar_on_spark.model.ids import MessageId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.model.names import TopicName, check_new_name
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog import catalog, permissions, registry
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

log = logging.getLogger(__name__)

AnyTopic = BrokerTopic | NonPersistentTopic
Load = Callable[[TopicName, TopicRecord], BrokerTopic]
"""A function that creates the object of an existing topic, which is then loaded."""
_ATTEMPTS: Final = 5
"""Maximum number of attempts to load a topic that is deleted meanwhile."""


class Topics:
    """All topics of a root, for a broker. Call all methods in its event loop.

    Args:
        root: The open root.
        views: The views of the root's metadata.
        commits: The group commit of the metadata.
        settings: The broker's settings: the rules of automatic creation, and the default policies.
        load: Creates the object of an existing topic.
        publish_rate: The limit on the publish rate of all topics together.
        require_served: Called before a topic is loaded; raises `ServerRefusalError` if another broker serves it.
        is_elsewhere: Returns True if another broker serves a topic, according to a view.

    Attributes:
        is_elsewhere: The argument `is_elsewhere`.
        compactions: The compactions of this broker; the owner of this object starts and stops them.
        http_creations: The rate at which topics may be created over HTTP.
    """

    def __init__(
        self,
        root: RootHandle,
        views: Views,
        commits: GroupedCommits,
        settings: BrokerSettings,
        load: Load,
        publish_rate: Throttle,
        require_served: Callable[[TopicName], Awaitable[None]],
        is_elsewhere: Callable[[RecentView, TopicName], bool],
    ) -> None:
        self.compactions = Compactions(root, settings, is_elsewhere)
        self._root = root
        self._views = views
        self._load = load
        self._require_served = require_served
        self.is_elsewhere = is_elsewhere
        self._publish_rate = publish_rate
        self._defaults = default_policies(settings)
        self._creation = TopicCreation(commits, self._defaults, topic_limits(settings))
        self.http_creations = CreationRate()
        self._loaded: dict[TopicName, BrokerTopic] = {}
        self._non_persistent: dict[TopicName, NonPersistentTopic] = {}
        self._loading: dict[tuple[TopicName, bool], asyncio.Task[BrokerTopic | None]] = {}
        """Running loads, by name and by permission to create the topic."""
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self.loads = Latencies()
        """The histogram of the times to load a topic."""
        self._is_closed = False

    def __iter__(self) -> Iterator[BrokerTopic]:
        return iter(list(self._loaded.values()))

    @property
    def non_persistent(self) -> list[NonPersistentTopic]:
        """The non-persistent topics that are in use."""
        return list(self._non_persistent.values())

    async def partitions(self, name: TopicName, *, create: CreationRate | None = None) -> int:
        """Return the number of partitions of a topic; 0 if it has none.

        Args:
            name: The topic.
            create: The rate at which the client may create a missing topic; None to create none. If automatic creation
                makes topics without partitions, returns 0 without creating one (`TopicCreation.create_partitioned`).

        Raises:
            TopicNotFoundError: the topic does not exist, and is not created.
            MetadataError: the metadata cannot be read or written.
        """
        if not name.is_persistent or name in self._loaded:
            return 0  # partitioned topics themselves are never loaded
        view = await self._views.view()
        record = view.get(TopicRecord, name.full)
        if record is None:
            if create is None:
                raise not_there(name)
            record = await self._creation.create_partitioned(view, name, create)
        return 0 if record is None else record.partitions or 0

    async def create_missing(self, name: TopicName, rate: CreationRate) -> None:
        """Create a missing topic, as its first producer would (errors as `TopicCreation.create`)."""
        if name.is_persistent and name not in self._loaded:
            view = await self._views.view()
            if view.get(TopicRecord, name.full) is None:
                await self._creation.create(view, name, rate)

    async def get(self, name: TopicName, *, create: CreationRate | None = None) -> AnyTopic:
        """Return a topic, loading it if necessary.

        Args:
            name: The topic.
            create: The rate at which the client may create a missing topic; None to create none (errors as
                `TopicCreation.create`). Concurrent calls for one topic count once, at the rate of the first call.

        Raises:
            ServerRefusalError: the topic is partitioned and not a partition, or the broker is shutting down.
            TopicNotFoundError: the topic does not exist, and is not created.
            PulsarpyError: as `BrokerTopic.load`.
        """
        key = name, create is not None
        for _ in range(_ATTEMPTS):
            if (loaded := self._loaded.get(name)) is not None:
                return loaded
            self._require_running()
            view = await self._views.view() if create is not None and not name.is_persistent else None
            if name.is_persistent or name not in self._non_persistent:
                await self._require_served(name)  # no wait from here to the load's start: `unload_some` relies on it
            if not name.is_persistent:
                return self._get_non_persistent(name, view)
            if (loading := self._loading.get(key)) is None:
                loading = self._loading[key] = asyncio.create_task(self._load_topic(name, create))
                loading.add_done_callback(lambda _: self._loading.pop(key, None))
            if (loaded := await asyncio.shield(loading)) is not None:
                return loaded
        raise ServerRefusalError(
            ServerError.ServiceNotReady, f"Topic {name} was deleted repeatedly while it was loaded: try again."
        )

    async def again(self, topic: AnyTopic) -> AnyTopic:
        """Return a topic that the caller got before it awaited something else.

        A non-persistent topic that has ended with its last client meanwhile is created again. The caller must add its
        client without another await.
        """
        return topic if isinstance(topic, BrokerTopic) else await self.get(topic.name, create=self.http_creations)

    def _get_non_persistent(self, name: TopicName, view: View | None = None) -> NonPersistentTopic:
        """Return a non-persistent topic; create a missing one if `view` is not None and the policies in it allow it."""
        if view is not None:
            require_namespace(view, name)
        topic = self._non_persistent.get(name)
        if topic is None:
            if (
                view is None
                or not effective_policies(view, name, self._defaults).auto_topic_creation.allow_auto_topic_creation
            ):
                raise TopicNotFoundError(
                    f"Topic {name} does not exist: a non-persistent topic exists only while it has clients."
                )
            check_new_name("Topic name", name.full)
            topic = self._non_persistent[name] = NonPersistentTopic(
                name, self._defaults, self._publish_rate, self._emptied
            )
            topic.follow_record(view)
        return topic

    def _emptied(self, topic: NonPersistentTopic) -> None:
        if self._non_persistent.get(topic.name) is topic:
            del self._non_persistent[topic.name]

    # -- operations of operators ---------------------------------------------------------------------------------------

    async def unload(self, name: TopicName) -> None:
        """Unload a topic or all its partitions: clients look it up again, and its ledger is closed.

        Raises:
            TopicNotFoundError: there is no such topic, or it is non-persistent and has no clients.
            MetadataError: the metadata cannot be read.
        """
        if not name.is_persistent:
            await self._get_non_persistent(name).close()
            return
        for part in await self._parts(name):
            async with self._lock(part):
                await self._unload(part)

    async def terminate(self, name: TopicName) -> MessageId:
        """Terminate a topic (see `BrokerTopic.terminate`); no effect on a terminated one.

        Returns:
            The id of the topic's last message; as in Pulsar, (-1, -1) if it has none.

        Raises:
            ServerRefusalError: the topic is not persistent, has partitions, or is being unloaded.
            TopicNotFoundError: there is no such topic.
            PulsarpyError: as `BrokerTopic.terminate`.
        """
        topic = await self.get(name)
        if not isinstance(topic, BrokerTopic):
            raise ServerRefusalError(
                ServerError.NotAllowedError,
                f"Topic {name} is not persistent, so it cannot be terminated: close its producers instead.",
            )
        async with self._lock(name):
            if self._loaded.get(name) is not topic:
                raise ServerRefusalError(ServerError.ServiceNotReady, f"Topic {name} is being unloaded: try again.")
            return await topic.terminate()

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with its partitions, messages and subscriptions, and disconnect its clients.

        Clients that reconnect create a new topic if automatic creation is on.

        Args:
            name: A topic, or a partitioned topic as a whole.
            force: True to delete it even if it has clients or subscriptions.

        Raises:
            TopicNotFoundError: there is no such topic.
            TopicBusyError: the topic has producers, consumers or subscriptions, and `force` is false.
            InvalidArgumentError: the topic is a partition.
            MetadataError: the deletion could not be committed.
        """
        if not name.is_persistent:
            volatile = self._get_non_persistent(name)
            if not force:
                raise TopicBusyError(
                    f"Topic {name} is in use: close its producers and consumers, or force the deletion."
                )
            await volatile.close()
            with suppress(SchemaNotFoundError):
                await asyncio.to_thread(registry.delete_schema, self._root.store, name, force=True)
            await asyncio.to_thread(permissions.revoke_all_of_topic, self._root.store, name)
            return
        parts = await self._parts(name)
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(self._lock(part))
            if not force:
                self._require_unused(parts, await self._views.view())
            for part in parts:
                await self._unload(part)
            await asyncio.to_thread(catalog.delete_topic, self._root.store, name, force=force)

    async def delete_inactive(self, name: TopicName, check: Callable[[View], None]) -> None:
        """Delete an unused topic with its messages and subscriptions.

        Args:
            name: A topic, or a partitioned topic as a whole.
            check: Called with the view on which the deletion is based; raises to prevent it.

        Raises:
            TopicNotFoundError: there is no such topic.
            TopicBusyError: the topic has producers or consumers, or `check` raises it.
            MetadataError: the deletion could not be committed.
        """
        parts = await self._parts(name)
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(self._lock(part))
            for part in parts:
                if (topic := self._loaded.get(part)) is not None and topic.has_clients:
                    raise TopicBusyError(f"Topic {part} is in use again: it is not deleted.")
            for part in parts:
                await self._unload(part)
            await asyncio.to_thread(catalog.delete_topic, self._root.store, name, force=True, check=check)

    async def compact(self, name: TopicName) -> None:
        """Compact a topic, or each of its partitions, in the background, up to the last acknowledged entry at least.

        Raises:
            TopicNotFoundError: there is no such topic.
            TopicBusyError: a compaction of the topic is running or waits for its turn.
            MetadataError: the metadata cannot be read.
        """
        for part in await self._parts(name):
            topic = self._loaded.get(part)
            if topic is not None:
                await topic.wait_until_readable()
            self.compactions.run(part, None if topic is None else topic.chain.end)

    async def compaction_status(self, name: TopicName) -> WorkStatus:
        """Return the state of a topic's last compaction, of all its partitions together.

        Raises:
            TopicNotFoundError: there is no such topic.
            MetadataError: the metadata cannot be read.
        """
        return WorkStatus.of_all([self.compactions.status(part) for part in await self._parts(name)])

    async def _parts(self, name: TopicName) -> list[TopicName]:
        """Return the name of the topic, or the names of its partitions, without those that another broker serves.

        Raises:
            TopicNotFoundError: there is no such topic.
            ServerRefusalError: the topic has no partitions, and another broker serves it.
        """
        view = await self._views.view()
        record = catalog.require_topic(view, name)
        parts = [TopicName.parse(part.name) for part in catalog.parts(view, record)]
        own = [part for part in parts if not self.is_elsewhere(view, part)]
        if not own and record.partitions is None:
            raise _moved(name)
        return own

    def _require_unused(self, parts: Sequence[TopicName], view: View) -> None:
        for name in parts:
            topic = self._loaded.get(name)
            if topic is not None and not topic.producers.is_empty:
                raise TopicBusyError(f"Topic {name} has producers: close them, or force the deletion.")
            record = view.get(TopicRecord, name.full)
            subscriptions = [] if record is None else view.all(SubscriptionRecord, record.topic_id)
            if subscriptions or (topic is not None and not topic.subscriptions.is_empty):
                which = subscriptions[0].name if subscriptions else topic.subscriptions.all[0].name if topic else ""
                raise TopicBusyError(
                    f"Topic {name} has the subscription {which!r}: delete its subscriptions, or force the deletion."
                )

    async def unload_deleted(self) -> None:
        """Unload the topics that were deleted with their namespace, so that new topics of their names can be loaded.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        view = await self._views.view()
        for topic in list(self._loaded.values()):
            record = view.get(TopicRecord, topic.name.full)
            if record is None or record.topic_id != topic.topic_id:
                await self.unload_if_loaded(topic)

    async def unload_some(self, is_wanted: Callable[[TopicName], bool]) -> None:
        """Unload the topics whose names `is_wanted` accepts; the caller ensures that none is loaded meanwhile."""
        loading = [task for (name, _), task in self._loading.items() if is_wanted(name)]
        await asyncio.gather(*loading, return_exceptions=True)
        await asyncio.gather(*(self.unload_if_loaded(topic) for topic in self if is_wanted(topic.name)))
        for volatile in self.non_persistent:
            if is_wanted(volatile.name):
                await volatile.close()

    async def unload_lost(self, view: RecentView) -> None:
        """Unload the topics that another broker serves according to a view."""
        for topic in [*self, *self.non_persistent]:
            if not self.is_elsewhere(view, topic.name):
                continue
            log.warning("Topic %s belongs to another broker now, and is unloaded.", topic.name)
            if isinstance(topic, NonPersistentTopic):
                await topic.close()
            else:
                await self.unload_if_loaded(topic)

    async def unload_if_loaded(self, topic: BrokerTopic) -> None:
        """Unload a topic unless it was unloaded before."""
        async with self._lock(topic.name):
            if self._loaded.get(topic.name) is topic:
                await self._unload(topic.name)

    async def _unload(self, name: TopicName) -> None:
        """Unload a topic; the caller holds its lock, so that it is not loaded meanwhile."""
        if (topic := self._loaded.pop(name, None)) is not None:
            await topic.unload()

    def _lock(self, name: TopicName) -> asyncio.Lock:
        """Return the lock that is held while a topic is loaded, unloaded, terminated or deleted."""
        return self._locks.setdefault(name, asyncio.Lock())

    # ------------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Unload all topics, and refuse to load others from now on."""
        self._is_closed = True
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        closing, self._loaded = list(self._loaded.values()), {}
        await asyncio.gather(*(topic.close() for topic in closing), return_exceptions=True)
        for topic in self.non_persistent:
            await topic.close()

    async def names(self) -> list[str]:
        """Return the full names of all topics; a partitioned topic is represented by its partitions."""
        view = await self._views.view()
        stored = [topic.name for topic in view.all(TopicRecord) if topic.partitions is None]
        return [*stored, *(name.full for name in self._non_persistent)]

    async def _load_topic(self, name: TopicName, create: CreationRate | None) -> BrokerTopic | None:
        """Load a topic; return None if it was deleted meanwhile."""
        async with self._lock(name):
            if (loaded := self._loaded.get(name)) is not None:
                return loaded
            view = await self._views.view()
            if view.get(TopicRecord, name.full) is None:
                if create is None:
                    raise not_there(name)
                await self._creation.create(view, name, create)
                view = await self._views.view()
            if (record := view.get(TopicRecord, name.full)) is None:
                return None
            if record.partitions is not None:
                raise ServerRefusalError(
                    ServerError.NotAllowedError,
                    f"Topic {name} has {record.partitions} partitions: use {name.partition(0)} and so on.",
                )
            if self.is_elsewhere(view, name):
                raise _moved(name)
            with self.loads.timed():
                topic = self._load(name, record)
                await topic.load(view)
            self._require_running()
            self._loaded[name] = topic
            return topic

    def _require_running(self) -> None:
        if self._is_closed:
            raise ServerRefusalError(
                ServerError.ServiceNotReady, "The broker is shutting down: look the topic up again."
            )


def _moved(name: TopicName) -> ServerRefusalError:
    return ServerRefusalError(
        ServerError.ServiceNotReady, f"Topic {name} is served by another broker now: look it up again."
    )
