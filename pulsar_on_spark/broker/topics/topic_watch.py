"""A periodic scan of the metadata for topics that others changed, and the unloading of unused topics.

    metadata, once a second ──> records of loaded topics ──> unload, terminate, apply new policies
                            └─> names of all topics ──> clients that watch lists of topics (WATCH_TOPIC_UPDATE)

Changes by Spark, the command line and jobs take effect by this scan; changes through this broker take effect at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.unchanged import Unchanged
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentTopic
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topic_list_watcher import ListChange, TopicListWatcher
from pulsar_on_spark.broker.topics.topic_lists import TopicList
from pulsar_on_spark.broker.topics.topics import AnyTopic, Topics
from pulsar_on_spark.metadata.records import NamespaceRecord, Record, SettingsRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.protocol import replies

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
FORGET_AFTER_S: Final = 60.0
"""Time after which an unused topic is unloaded, in seconds; its ledger was closed before (`CLOSE_IDLE_S`)."""
_SCANS_PER_FORGET: Final = 6
"""Scans for unused topics per `FORGET_AFTER_S`."""
MAX_WATCHERS: Final = 100
"""Maximum number of lists that one connection may watch."""

_Seen = tuple[Record | None, ...]


class TopicWatch:
    """A periodic scan of the metadata, which updates loaded topics and the clients that watch lists of topics.

    Call all methods in the broker's event loop.

    Args:
        views: The views of the root's metadata.
        topics: The broker's topics.
        forget_after_s: Time for which an unused topic stays loaded, in seconds.
    """

    def __init__(self, views: Views, topics: Topics, *, forget_after_s: float = FORGET_AFTER_S) -> None:
        self._views = views
        self._topics = topics
        self._forget_after_s = forget_after_s
        self._seen: dict[AnyTopic, _Seen] = {}
        self._unused = Unchanged[BrokerTopic, None]()
        self._scanned_for_unused_s = float("-inf")
        self._names: frozenset[str] = frozenset()
        self._names_at = -1
        self._watchers: dict[Peer, dict[int, TopicListWatcher]] = {}
        self._matching = asyncio.Lock()
        """Held while a thread updates watchers: updates run one by one, each from the names of the update before."""
        self._revision = -1
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic scan."""
        complaint = "The metadata cannot be scanned for changed topics now"
        self._looking = asyncio.create_task(every(LOOK_EVERY_S, self.scan_metadata, complaint), name="topic watch")

    async def stop(self) -> None:
        """Stop the periodic scan."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    # -- lists of topics -----------------------------------------------------------------------------------------------

    async def watch(self, peer: Peer, watcher_id: int, namespace: str, pattern: str, known_hash: str) -> TopicList:
        """Return the persistent topics that match a pattern, and send the client an update after each change.

        Args:
            peer: The client.
            watcher_id: The client's number for this watch; it replaces an existing watch of the same number.
            namespace: `tenant/namespace`.
            pattern: The client's regular expression.
            known_hash: The hash of the client's list; "" if it has none.

        Raises:
            InvalidArgumentError: the pattern is invalid in RE2, or the client watches too many lists.
            MetadataError: the metadata cannot be read.
        """
        watcher = TopicListWatcher(namespace, pattern)
        view = await self._views.view()
        async with self._matching:
            if len(self._watchers.get(peer, {}).keys() - {watcher_id}) >= MAX_WATCHERS:
                raise InvalidArgumentError(
                    f"The connection watches {MAX_WATCHERS} lists of topics already: close some."
                )
            await self._send_updates(view)
            topics = await asyncio.to_thread(watcher.begin, self._names, known_hash)
            if not peer.is_closed:
                self._watchers.setdefault(peer, {})[watcher_id] = watcher
            return topics

    @property
    def watchers(self) -> list[tuple[Peer, int, str]]:
        """All watches: the client, its number of the watch, and the namespace (`tenant/namespace`)."""
        return [
            (peer, watcher_id, watcher.namespace)
            for peer, watchers in self._watchers.items()
            for watcher_id, watcher in watchers.items()
        ]

    def unwatch(self, peer: Peer, watcher_id: int) -> None:
        """End one watch of a client; do nothing if there is no such watch."""
        self._watchers.get(peer, {}).pop(watcher_id, None)

    def unwatch_all(self, peer: Peer) -> None:
        """End all watches of a client that has disconnected."""
        self._watchers.pop(peer, None)

    async def _send_updates(self, view: View) -> None:
        """Send updates to watching clients, unless this view or a newer one was applied already.

        `_matching` must be held.
        """
        if view.state.revision <= self._names_at:
            return
        open_ = [
            (peer, watcher_id, watcher)
            for peer, watchers in self._watchers.items()
            for watcher_id, watcher in watchers.items()
        ]
        names, changes = await asyncio.to_thread(_changes, view, self._names, [watcher for *_, watcher in open_])
        self._names_at, self._names = view.state.revision, names
        for (peer, watcher_id, watcher), change in zip(open_, changes, strict=True):
            is_open = self._watchers.get(peer, {}).get(watcher_id) is watcher
            if change is not None and is_open:
                peer.write(replies.watch_topic_update(watcher_id, *change))

    # -- loaded topics -------------------------------------------------------------------------------------------------

    async def scan_metadata(self) -> None:
        """Scan the metadata once: update loaded topics and watching clients, and unload unused topics.

        Raises:
            MetadataError: the metadata cannot be read.
        """
        view = await self._views.view()
        if self._watchers and view.state.revision > self._names_at:
            async with self._matching:
                await self._send_updates(view)
        if view.state.revision != self._revision:
            await self._follow(view)
            self._revision = view.state.revision
        await self._forget_unused()

    async def _follow(self, view: View) -> None:
        """Apply changed records to loaded topics; the next scan applies changes that are made during this one."""
        loaded: list[AnyTopic] = [*self._topics, *self._topics.non_persistent]
        records_of_loaded = await asyncio.to_thread(lambda: [_records(view, topic) for topic in loaded])
        seen = dict(zip(loaded, records_of_loaded, strict=True))
        changed = [topic for topic, records in seen.items() if records != self._seen.get(topic)]
        self._seen = seen
        for topic in changed:
            if isinstance(topic, NonPersistentTopic):
                topic.follow_record(view)
                continue
            record = view.get(TopicRecord, topic.name.full)
            if record is None or record.topic_id != topic.topic_id:
                log.warning(
                    "Topic %s was deleted: its clients are disconnected.", topic.name, extra={"topic": topic.name}
                )
                await self._topics.unload_if_loaded(topic)
            else:
                topic.follow_record(view)
                if topic.must_reload:
                    await self._topics.unload_if_loaded(topic)

    async def _forget_unused(self) -> None:
        """Unload unused topics; runs rarely, because it visits every loaded topic on the event loop."""
        now_s = time.monotonic()
        if now_s - self._scanned_for_unused_s < self._forget_after_s / _SCANS_PER_FORGET:
            return
        self._scanned_for_unused_s = now_s
        unused: dict[BrokerTopic, None] = {topic: None for topic in self._topics if topic.is_unused}
        for topic, unused_s in self._unused.record_scan(now_s, unused).items():
            if unused_s >= self._forget_after_s and topic.is_unused:
                await self._topics.unload_if_loaded(topic)


def _changes(
    view: View, before: frozenset[str], watchers: Sequence[TopicListWatcher]
) -> tuple[frozenset[str], list[ListChange | None]]:
    """Return the full names of all partitions and unpartitioned topics, and each watcher's update, None for none."""
    names = frozenset(topic.name for topic in view.all(TopicRecord) if topic.partitions is None)
    came, went = names - before, before - names
    return names, [watcher.change(came, went) if came or went else None for watcher in watchers]


def _records(view: View, topic: AnyTopic) -> _Seen:
    """Return the records that define a topic: of itself, of its partitioned topic, its namespace and the settings.

    None stands for a missing record. Views parse each row once, so unchanged rows are identical objects.
    """
    name = topic.name
    base = view.get(TopicRecord, name.partitioned_base.full) if name.partition_index >= 0 else None
    settings = view.get(SettingsRecord, "settings")
    return view.get(TopicRecord, name.full), base, view.get(NamespaceRecord, name.namespace), settings
