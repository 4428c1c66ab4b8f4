"""Giving bundles up: this broker closes their topics, then one commit removes their owner or names the next one.

    leave    lookups, and clients that want to join a topic of the bundles, wait
    close    published entries are acknowledged, ledgers closed, cursors saved, clients disconnected
    give     one commit; waiting clients are sent to the next owner

If the broker dies in between, another one recovers its journal, which frees all of its bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from operator import is_
from typing import Final

from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.broker.cluster.registry import Registry
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.records import BundlesRecord
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.errors import TopicBusyError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.bundles import Bundle, decide_give

GIVEN_AT_ONCE: Final = 4
"""Number of bundles that a draining broker gives up at the same time."""
CHECK_EVERY_S: Final = 1.0
"""Interval of the check that this broker owns the bundles of its loaded topics, in seconds."""


class Handover:
    """Handover of bundles by this broker.

    Args:
        store: The root's metadata.
        views: The views of the root's metadata.
        topics: The broker's topics.
        journals: The broker's journals.
        ownership: The owners of bundles, as this broker sees them.
        registry: This broker's registration.
        drain_s: Time limit of `drain`, in seconds.

    Attributes:
        given: Number of bundles that were given up.
    """

    def __init__(
        self,
        store: MetadataStore,
        views: Views,
        topics: Topics,
        journals: Journals,
        ownership: Ownership,
        registry: Registry,
        drain_s: float,
    ) -> None:
        self.given = 0
        self._drain_s = drain_s
        self._journals = journals
        self._store = store
        self._views = views
        self._topics = topics
        self._ownership = ownership
        self._registry = registry
        self._checking: asyncio.Task[None] | None = None
        self._checked: Sequence[BundlesRecord] = ()

    def start(self) -> None:
        """Start the periodic check that this broker owns the bundles of its loaded topics."""
        complaint = "The broker cannot check now whether it still owns its topics"
        self._checking = asyncio.create_task(every(CHECK_EVERY_S, self._unload_lost, complaint), name="ownership")

    async def stop(self) -> None:
        """Stop the periodic check."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def unload(self, bundles: Collection[Bundle], to: str | None = None) -> None:
        """Close the topics of bundles that this broker owns, and give the bundles up.

        Args:
            bundles: The bundles; bundles that this broker has lost are skipped.
            to: The id of the incarnation that owns the bundles next. None to let the next lookups choose; this broker
                then keeps the bundles if no other broker takes bundles.

        Raises:
            TopicBusyError: a topic could not be closed now, and this broker keeps its bundle.
            MetadataError: the metadata cannot be read or written; some bundles may have been given up.
        """
        await self._ownership.wait_for_others(bundles)
        with self._ownership.leave(bundles):
            view = await self._views.view()
            epochs = self._ownership.epochs(view, bundles)
            await self._topics.unload_some(lambda name: _is_in(name, epochs))
            unclosed = await self._unclosed(epochs)
            given = {bundle: epoch for bundle, epoch in epochs.items() if not any(name in bundle for name in unclosed)}
            if given and (to is not None or self._ownership.has_others()):
                own, count, now = self._ownership.incarnation, self._ownership.default_count, datetime.now(UTC)
                await asyncio.to_thread(
                    self._store.commit, lambda current: decide_give(current, given, own, to, count, now)
                )
                self.given += len(given)
                await self._views.view()
        if unclosed:
            raise TopicBusyError(
                f"Topic {unclosed[0]} could not be closed now, so this broker keeps its bundle: try again."
            )

    async def _unclosed(self, bundles: Collection[Bundle]) -> list[TopicName]:
        """Close the ledgers that an earlier attempt left open; return the bundles' topics whose ledger stays open."""
        for incarnation in self._journals:
            await incarnation.close_ledgers(())
        names = (TopicName.parse(name) for incarnation in self._journals for name in incarnation.unclosed_topics)
        return [name for name in names if _is_in(name, bundles)]

    async def drain(self) -> None:
        """Stop taking bundles. If another broker takes bundles, give up all bundles, those without loaded topics first.

        Raises:
            TimeoutError: the handover took more than `drain_s`; the remaining bundles become free when this broker's
                journal is closed.
            PulsarpyError: as `unload`.
        """
        await self._registry.drain()
        view = await self._views.view()
        if not self._ownership.has_others():
            return
        owned = self._ownership.owned(view)
        in_use = [bundle for bundle in owned if any(topic.name in bundle for topic in self._topics)]
        async with asyncio.timeout(self._drain_s):
            await self.unload([bundle for bundle in owned if bundle not in in_use])
            for begin in range(0, len(in_use), GIVEN_AT_ONCE):
                await self.unload(in_use[begin : begin + GIVEN_AT_ONCE])

    async def _unload_lost(self) -> None:
        """Unload the topics whose bundles this broker has lost."""
        view = self._views.recent
        records = view.all(BundlesRecord)
        if len(records) == len(self._checked) and all(map(is_, records, self._checked)):
            return  # views parse each row once, so unchanged rows are identical objects
        await self._topics.unload_lost(view)
        self._checked = records


def _is_in(name: TopicName, bundles: Collection[Bundle]) -> bool:
    return any(name in bundle for bundle in bundles)
