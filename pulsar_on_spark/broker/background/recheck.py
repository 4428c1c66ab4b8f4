"""Reauthorization of connected clients: clients whose permission was revoked are disconnected.

A producer, consumer or watcher is authorized when it is opened, and again when the permissions of its namespace or the
administrators of its tenant change; messages are not authorized one by one. A disconnected client opens its producer
or consumer again, and then gets the refusal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from pulsar_on_spark.broker.runtime.access import Access
from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentTopic
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import AnyTopic, Topics
from pulsar_on_spark.metadata.records import PermissionsRecord, TenantRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.security.operations import NamespaceOperation, Operation, Resource, TopicOperation

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 0.5
"""Interval of the check for a new view. A broker reads the metadata every second, so a revocation takes effect within
two seconds."""
AT_ONCE: Final = 500
"""Maximum number of producers, consumers and watchers that are authorized in one turn of the event loop."""


class Rights(NamedTuple):
    """The rights of all roles in a view.

    Attributes:
        admins: The administrators' roles of each tenant, by the tenant's name.
        permissions: The permissions of each namespace that has any, by `tenant/namespace`.
    """

    admins: Mapping[str, tuple[str, ...]]
    permissions: Mapping[str, PermissionsRecord]

    @classmethod
    def of(cls, view: RecentView) -> Rights:
        """Return the rights in a view."""
        return cls(
            {tenant.tenant: tenant.admin_roles for tenant in view.all(TenantRecord)},
            {record.namespace: record for record in view.all(PermissionsRecord)},
        )

    def changed_since(self, before: Rights) -> frozenset[str]:
        """Return the names of the tenants and namespaces whose rights differ from those in an earlier view."""
        return frozenset({*_differing(self.admins, before.admins), *_differing(self.permissions, before.permissions)})


class _Opened(NamedTuple):
    """A producer, consumer or watcher, with the permission that its client needs.

    Attributes:
        peer: The client's connection.
        operation: The operation that must be permitted.
        resource: The topic, subscription or namespace of the operation.
        disconnect: Closes the producer or consumer, or ends the watch.
    """

    peer: Peer
    operation: Operation
    resource: Resource
    disconnect: Callable[[], None]


class Recheck:
    """Authorization of connected clients after each change of rights.

    Args:
        views: The views of the root's metadata.
        topics: The broker's topics.
        watch: The watchers of lists of topics.
        access: The authorization of clients.
    """

    def __init__(self, views: Views, topics: Topics, watch: TopicWatch, access: Access) -> None:
        self._views = views
        self._topics = topics
        self._watch = watch
        self._access = access
        self._revision = views.recent.state.revision
        self._rights = Rights.of(views.recent)
        self._checking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic check for changed rights."""
        complaint = "Connected clients cannot be authorized again now"
        self._checking = asyncio.create_task(every(CHECK_EVERY_S, self.check_clients, complaint), name="recheck")

    async def stop(self) -> None:
        """Stop checking."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def check_clients(self) -> None:
        """Disconnect clients whose permission was revoked since the last call."""
        view = self._views.recent
        if view.state.revision == self._revision:
            return
        rights = Rights.of(view)
        changed = rights.changed_since(self._rights)
        if changed:
            await self._disconnect_refused(changed)
        self._revision, self._rights = view.state.revision, rights

    async def _disconnect_refused(self, changed: frozenset[str]) -> None:
        refused = 0
        for number, opened in enumerate(self._opened(changed), 1):
            principal = opened.peer.principal
            if principal is not None and not self._access.decide(principal, *opened[1:3]).is_allowed:
                opened.disconnect()
                refused += 1
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if refused:
            log.info("Permissions were revoked: %d producers, consumers and watchers are disconnected.", refused)

    def _opened(self, changed: frozenset[str]) -> Iterator[_Opened]:
        """Iterate over the producers, consumers and watchers of the changed tenants and namespaces.

        The caller may await between two items.
        """
        for topic in (*self._topics, *self._topics.non_persistent):
            if topic.name.namespace in changed or topic.name.tenant in changed:
                yield from _producers(topic)
                yield from _consumers(topic)
        for peer, watcher_id, namespace in self._watch.watchers:
            resource = Resource.of_namespace(namespace)
            if namespace in changed or resource.tenant in changed:
                end = partial(self._watch.unwatch, peer, watcher_id)
                yield _Opened(peer, NamespaceOperation.GET_TOPICS, resource, end)


def _producers(topic: AnyTopic) -> Iterator[_Opened]:
    resource = Resource.of_topic(topic.name)
    for producer in topic.producers.connected:
        if not producer.is_closed:
            yield _Opened(producer.peer, TopicOperation.PRODUCE, resource, producer.disconnect)


def _consumers(topic: AnyTopic) -> Iterator[_Opened]:
    for name, consumer, leave in _subscribed(topic):
        if not consumer.is_closed:
            resource = Resource.of_topic(topic.name, name)
            yield _Opened(consumer.peer, TopicOperation.CONSUME, resource, partial(_close, consumer, leave))


def _subscribed(topic: AnyTopic) -> Iterator[tuple[str, Consumer, Callable[[], None]]]:
    """Iterate over a topic's consumers: subscription name, consumer, and the function that removes the consumer."""
    if isinstance(topic, NonPersistentTopic):
        for volatile in topic.subscriptions.all:
            for consumer in volatile.consumers:
                yield volatile.name, consumer, partial(topic.subscriptions.remove_consumer, volatile, consumer)
    else:
        for stored in topic.subscriptions.all:
            for consumer in stored.consumers:
                yield stored.name, consumer, partial(topic.subscriptions.remove_consumer, stored, consumer)


def _close(consumer: Consumer, leave: Callable[[], None]) -> None:
    consumer.send_close()
    leave()


def _differing(now: Mapping[str, object], before: Mapping[str, object]) -> Iterator[str]:
    """Iterate over keys whose values differ. Unchanged records of views are identical objects, so this is fast."""
    for name in now.keys() | before.keys():
        current, previous = now.get(name), before.get(name)
        if current is not previous and current != previous:
            yield name
