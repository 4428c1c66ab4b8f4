"""Ownership of bundles: which broker serves a topic.

A lookup of a topic whose bundle has no owner assigns all free bundles of the namespace, in one commit. A lookup waits
while the owner is dead and its journal is not recovered yet, and while the owner gives the bundle up: a client that is
refused would try again only later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Final

from pulsar_on_spark.broker.cluster.isolation import allowed_brokers, isolations
from pulsar_on_spark.broker.cluster.load import BrokerLoad, place_bundles
from pulsar_on_spark.broker.cluster.registry import Registry
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.metadata.records import BrokerRecord, BundlesRecord, NamespaceRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog.brokers import (
    broker_of,
    is_own_namespace,
    leader,
    own_namespace,
    registered_brokers,
    serving_brokers,
)
from pulsar_on_spark.topic.catalog.bundles import (
    Bundle,
    NamespaceBundles,
    bundles_of,
    decide_assign,
    effective_owner,
)

LOOKUP_WAIT_S: Final = 15.0
"""Time for which a lookup waits for a bundle's owner, in seconds; a takeover takes less time."""
LOOK_EVERY_S: Final = 0.2
"""Interval at which a waiting lookup reads the metadata, in seconds."""

Locate = Callable[[NamespaceBundles], Bundle]
"""Finds a bundle among the current bundles of its namespace, which may have been split since the last call."""


def bundle_counts(view: RecentView) -> Counter[str]:
    """Return the number of bundles that each incarnation owns, by the incarnation's id."""
    records = view.all(BundlesRecord)
    return Counter(owner.incarnation for record in records for owner in record.owners if owner.incarnation is not None)


class Ownership:
    """The owners of bundles, as this broker sees them. Call all methods in the broker's event loop.

    Args:
        store: The root's metadata.
        views: The views of the root's metadata.
        registry: This broker's registration.
        default_count: The number of bundles of a namespace for which no number was set.
        is_dead: Returns True for the id of an incarnation that this broker believes to be dead.
        may_be_dead: Returns True for the id of an incarnation that may be dead: lookups wait until this is decided.
        loads: Returns the known loads of brokers, by the id of the incarnation.

    Attributes:
        default_count: The number of bundles of a namespace for which no number was set.
        waited: Number of lookups that waited for an owner for longer than `LOOK_EVERY_S`.
    """

    def __init__(
        self,
        store: MetadataStore,
        views: Views,
        registry: Registry,
        default_count: int,
        is_dead: Callable[[str], bool],
        may_be_dead: Callable[[str], bool],
        loads: Callable[[], Mapping[str, BrokerLoad]],
    ) -> None:
        self._store = store
        self._views = views
        self._registry = registry
        self.default_count = default_count
        self.waited = 0
        self._is_dead = is_dead
        self._may_be_dead = may_be_dead
        self._loads = loads
        self._random = Random()
        self._leaving: dict[Bundle, asyncio.Event] = {}
        self._assigning: dict[str, asyncio.Task[None]] = {}

    @property
    def broker(self) -> BrokerRecord:
        """The registration of this broker."""
        return self._registry.record

    @property
    def incarnation(self) -> str:
        """The id of the incarnation by which this broker owns bundles."""
        return self._registry.record.incarnation

    def leads(self) -> bool:
        """Return True if this broker does the work that one broker does for the whole root, such as housekeeping.

        It is done by the registered living broker with the least id. If none is registered, every broker does it.
        """
        view = self._views.recent
        alive = [record for record in registered_brokers(view) if not self._is_dead(record.incarnation)]
        first = leader(alive)
        return first is None or first.incarnation == self.incarnation

    def has_others(self) -> bool:
        """Return True if another broker takes bundles according to the most recent view."""
        return any(record.incarnation != self.incarnation for record in serving_brokers(self._views.recent))

    def bundles(self, view: RecentView, namespace: str) -> NamespaceBundles:
        """Return the bundles of a namespace (`tenant/namespace`), with their owners."""
        return bundles_of(view, namespace, self.default_count)

    def owned(self, view: RecentView, namespace: str | None = None, incarnation: str | None = None) -> list[Bundle]:
        """Return the bundles that this broker, or a given one, owns.

        Args:
            view: The current metadata.
            namespace: The namespace (`tenant/namespace`); None for all namespaces.
            incarnation: The id of the other broker's incarnation; None for this broker.
        """
        owner = incarnation or self.incarnation
        names = [record.namespace for record in view.all(NamespaceRecord)] if namespace is None else [namespace]
        return [
            bundle
            for bundles in (self.bundles(view, name) for name in names)
            for bundle in bundles
            if bundles.owner_of(bundle).incarnation == owner
        ]

    def epochs(self, view: RecentView, bundles: Collection[Bundle]) -> dict[Bundle, int]:
        """Return the epoch of each of the given bundles, without bundles that this broker does not own."""
        owners = ((bundle, self.bundles(view, bundle.namespace).owner_of(bundle)) for bundle in bundles)
        return {bundle: owner.epoch for bundle, owner in owners if owner.incarnation == self.incarnation}

    def candidates(self, view: RecentView, namespace: str) -> list[BrokerRecord]:
        """Return the living brokers that may take bundles of a namespace, according to the isolation policies.

        A broker's own namespace is served by that broker only.
        """
        taking = self._taking(view)
        if is_own_namespace(namespace):
            return [record for record in taking if own_namespace(record.broker) == namespace]
        return allowed_brokers(isolations(view), namespace, taking)

    def _taking(self, view: RecentView) -> list[BrokerRecord]:
        """Return the registrations of the living brokers that accept new bundles."""
        others = (each for each in serving_brokers(view) if each.incarnation != self.incarnation)
        alive = [each for each in others if not self._is_dead(each.incarnation)]
        if self._registry.record.state == "serving":
            alive.append(self._registry.record)  # its registration may not be in the view yet
        return alive

    def is_elsewhere(self, view: RecentView, name: TopicName) -> bool:
        """Return True if another broker owns the topic's bundle."""
        bundles = self.bundles(view, name.namespace)
        return effective_owner(view, bundles.owner_of(bundles.bundle_of(name))) not in (None, self.incarnation)

    async def find_owner(self, name: TopicName) -> BrokerRecord:
        """Return the registration of the broker that owns a topic's bundle; assign the bundle first if it has no owner.

        The topic need not exist. If its namespace does not exist, this broker is returned.

        Raises:
            ServerRefusalError: the bundle has no owner for now, and a retry may succeed (ServiceNotReady).
            MetadataError: the metadata cannot be read or written.
        """
        return await self._find(name.namespace, lambda bundles: bundles.bundle_of(name), f"Topic {name}")

    async def find_bundle_owner(self, bundle: Bundle) -> BrokerRecord:
        """Return the registration of the broker that owns a bundle, as `find_owner` (with its errors)."""
        return await self._find(bundle.namespace, lambda _: bundle, f"Bundle {bundle}")

    async def _find(self, namespace: str, locate: Locate, what: str) -> BrokerRecord:
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        try:
            async with asyncio.timeout(LOOKUP_WAIT_S):
                while True:
                    recent, owner = self._views.recent, None
                    if recent.get(NamespaceRecord, namespace) is not None:  # else the view may be too old
                        owner = await self._settled_owner(recent, namespace, locate)
                    if owner is None or (owner.incarnation != self.incarnation and not self._views.is_fresh):
                        view = await self._views.view()
                        owner = await self._settled_owner(view, namespace, locate)
                    if owner is not None:
                        return owner
                    if not await self._assign_free(view, namespace):
                        await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"{what} has no broker now, because the journal of its last broker is not recovered yet: try again.",
            ) from error
        finally:
            self.waited += clock() - begun_s > LOOK_EVERY_S

    async def require_served(self, name: TopicName) -> None:
        """Check that this broker serves a topic. If the topic's bundle has no owner, it is assigned first.

        Raises:
            ServerRefusalError: another broker serves the topic (ServiceNotReady); the client looks it up again.
            MetadataError: the metadata cannot be read or written.
        """
        owner = await self.find_owner(name)
        if owner.incarnation != self.incarnation:
            await self._views.view()  # the client may know of a change that the recent view lacks
            owner = await self.find_owner(name)
        if owner.incarnation != self.incarnation:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"Topic {name} is served by the broker {owner.broker} and not by this one: look it up again.",
            )

    async def _settled_owner(self, view: RecentView, namespace: str, locate: Locate) -> BrokerRecord | None:
        """Return the broker that owns the bundle; None if the bundle has no owner, or if its owner may be dead.

        A missing namespace counts as owned by this broker, which then reports that it is missing.

        If this broker is giving the bundle up, wait until it has done so, and return None.
        """
        if view.get(NamespaceRecord, namespace) is None:
            return self._registry.record  # this broker reports that the namespace is missing
        bundles = self.bundles(view, namespace)
        bundle = locate(bundles)
        if (leaving := self._leaving_with(bundle)) is not None:
            await leaving.wait()
            return None
        owner = effective_owner(view, bundles.owner_of(bundle))
        if owner is None or self._may_be_dead(owner):
            return None
        return self._registry.record if owner == self.incarnation else broker_of(view, owner)

    async def _assign_free(self, view: RecentView, namespace: str) -> bool:
        """Assign the namespace's bundles without an owner, and return True; return False if every bundle has an owner.

        Concurrent calls for one namespace share one commit.
        """
        bundles = self.bundles(view, namespace)
        free = [bundle for bundle in bundles if effective_owner(view, bundles.owner_of(bundle)) is None]
        if not free:
            return False
        running = self._assigning.get(namespace)
        if running is None:
            running = self._assigning[namespace] = asyncio.create_task(self._assign(view, namespace, free))
            running.add_done_callback(lambda _: self._assigning.pop(namespace))
        await asyncio.shield(running)
        return True

    async def _assign(self, view: RecentView, namespace: str, free: Collection[Bundle]) -> None:
        candidates = [record.incarnation for record in self.candidates(view, namespace)]
        if not candidates:
            reason = (
                f"No broker that may serve namespace {namespace} is alive: start one, or change the isolation policies."
                if self._taking(view)
                else f"No broker takes topics of namespace {namespace}: all brokers are shutting down; try again."
            )
            raise ServerRefusalError(ServerError.ServiceNotReady, reason)
        owners = place_bundles(list(free), candidates, bundle_counts(view), self._loads(), self._random.sample)
        now = datetime.now(UTC)
        await asyncio.to_thread(
            self._store.commit, lambda current: decide_assign(current, owners, self.default_count, now)
        )
        await self._views.view()

    # -- giving up -----------------------------------------------------------------------------------------------------

    def _leaving_with(self, bundle: Bundle) -> asyncio.Event | None:
        """Return the event that is set when the running handover of this bundle, or of a bundle that contains it, ends.

        None if no handover of such a bundle is running.
        """
        return next((event for leaving, event in self._leaving.items() if leaving.covers(bundle)), None)

    async def wait_for_others(self, bundles: Collection[Bundle]) -> None:
        """Wait until no other handover gives up one of these bundles, a part of one, or a bundle that contains one."""
        while True:
            running = [
                event
                for leaving, event in self._leaving.items()
                if any(leaving.covers(bundle) or bundle.covers(leaving) for bundle in bundles)
            ]
            if not running:
                return
            await running[0].wait()

    @contextmanager
    def leave(self, bundles: Collection[Bundle]) -> Iterator[None]:
        """Return a context in which lookups of these bundles wait; after its end they find the next owner.

        The caller has awaited `wait_for_others`, so that none of the bundles is already being given up.
        """
        gone = {bundle: asyncio.Event() for bundle in bundles}
        self._leaving |= gone
        try:
            yield
        finally:
            for bundle, event in gone.items():
                del self._leaving[bundle]
                event.set()
