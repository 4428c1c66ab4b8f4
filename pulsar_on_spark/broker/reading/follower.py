"""The `LedgerChain` of each loaded topic, kept up to date by the metadata and the broker's own acknowledgements.

    metadata, every 0.25 s (two stat calls if unchanged) ──> topics whose ledgers or segments changed ──> extents
    acknowledged entries ──────────────────────────────────────────────────────────────────────────────> grow

Ledgers that Spark attached become visible in the order of the chain: never before the broker's own ledger in front of
them has ended. Call all methods in one event loop; the metadata is read in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pulsar_on_spark.broker.reading.extents import NO_CHAIN, ChainShape, UnknownEndError, chain_shape
from pulsar_on_spark.broker.runtime.repeating import attempt
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.metadata.state import ChangedChains, View
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import LedgerId, TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import has_attached_behind
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger

log = logging.getLogger(__name__)

POLL_S: Final = 0.25
POLL_OBJECTS_S: Final = 1.0
"""Intervals of polling the metadata, in seconds: on disks, and on object stores, where each poll costs a request. An
acknowledged entry in an unknown ledger triggers an earlier poll."""

SETTLE_S = 10.0
"""Time limit for acknowledged entries to become readable, in seconds."""


class ChainListener(Protocol):
    """Callbacks for changes of a topic's chain; called in the event loop, must not raise."""

    def on_chain_grew(self, chain: LedgerChain) -> None:
        """Handle more readable entries in the chain's last ledger, which Spark attached.

        Growth that was passed to `grow_ledger` causes no call.
        """

    def on_chain_changed(self, chain: LedgerChain, ended: Sequence[LedgerId]) -> None:
        """Handle a new chain: ledgers were added, have ended (`ended`, which never grow again), or were trimmed."""


@dataclass(slots=True, eq=False)
class _Followed:
    part: TopicPart
    listener: ChainListener
    shape: ChainShape = NO_CHAIN
    chain: LedgerChain = field(default_factory=LedgerChain)
    revision: int = -1
    """The metadata revision of the shape."""
    acknowledged: dict[LedgerId, int] = field(default_factory=dict)
    """Acknowledged ends of the broker's own open ledgers."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """The result of one scan of the metadata: the shapes of some topics, and the errors of others."""

    revision: int
    chains: Mapping[TopicId, tuple[ChainShape, LedgerChain]]
    errors: Mapping[TopicId, PulsarpyError]


class ChainFollower:
    """The chains of the topics that a broker has loaded.

    Args:
        root: The open root.
        incarnations: The broker's incarnations, one for each of its journals.
    """

    def __init__(self, root: RootHandle, incarnations: Iterable[Incarnation]) -> None:
        self._root = root
        self._incarnations = incarnations
        self._topics: dict[TopicId, _Followed] = {}
        self._loop = asyncio.get_running_loop()
        self._seen = -1
        self._failed: frozenset[TopicId] = frozenset()
        self._asked = asyncio.Event()
        self._installed = asyncio.Event()
        """Set, and replaced by a new one, when any chain changes."""
        self._polling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start polling the metadata."""
        self._polling = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Stop polling the metadata."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def follow_topic(self, part: TopicPart, listener: ChainListener, view: View | None) -> LedgerChain:
        """Return the topic's current chain, and call the listener for each later change.

        Args:
            part: The topic.
            listener: The callbacks for changes.
            view: A recent view that contains all changes of this topic; None to read the metadata.

        Raises:
            PulsarpyError: the metadata, or the journal of a ledger that was closed by force, cannot be read.
        """
        topic_id = TopicId(part.topic_id)
        followed = self._topics.get(topic_id)
        if followed is None:
            self._topics[topic_id] = followed = _Followed(part, listener)
        followed.listener = listener
        try:
            # An older view is of no use: scans between it and now did not include this topic.
            is_new = view is not None and view.state.revision >= self._seen
            scan = await asyncio.to_thread(self._scan, [followed], view if is_new else None)
            for error in scan.errors.values():
                raise error
        except BaseException:
            self._topics.pop(topic_id, None)
            raise
        self._install(followed, *scan.chains[topic_id], scan.revision, notifies=False)
        return followed.chain

    def unfollow_topic(self, topic_id: TopicId) -> None:
        """Stop following a topic that is unloaded; do nothing if it was not followed."""
        self._topics.pop(topic_id, None)

    def grow_ledger(self, topic_id: TopicId, ledger: LedgerId, end: int) -> bool:
        """Record that the entries before `end` of one of this broker's ledgers are acknowledged.

        Returns:
            True if the entries are readable now. They are not readable while an earlier ledger has not ended, or before
            a scan has found their ledger; the listener is called once they are readable.
        """
        followed = self._topics.get(topic_id)
        if followed is None:
            return False
        followed.acknowledged[ledger] = end
        chain = followed.chain
        if chain.end.ledger == ledger and not followed.shape.extents[-1].ended:
            chain.grow_ledger(ledger, end)
            return True
        self._asked.set()
        return False

    async def wait_until_readable(self, topic_id: TopicId) -> None:
        """Wait until all entries acknowledged so far are readable, at most `SETTLE_S`.

        A client that asks for the topic's last message or its end must see each message that it has a receipt for.
        """
        followed = self._topics.get(topic_id)
        if followed is None:
            return
        wanted = dict(followed.acknowledged)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                # A ledger that is no longer in `acknowledged` has ended, and its end is in the chain.
                while any(
                    ledger in followed.acknowledged and followed.chain.readable_end(ledger) < end
                    for ledger, end in wanted.items()
                ):
                    await self._installed.wait()

    # -- scans of the metadata -----------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_S if isinstance(self._root.place, Path) else POLL_OBJECTS_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            await attempt(self.refresh, "The chains of topics cannot be updated now")

    async def refresh(self) -> None:
        """Scan the metadata now, and call the listeners of changed topics.

        Raises:
            PulsarpyError: the metadata cannot be read.
        """
        topics = dict(self._topics)
        scan = await asyncio.to_thread(self._scan_changed, topics, self._seen, self._failed)
        for topic_id, (shape, chain) in scan.chains.items():
            followed = self._topics.get(topic_id)
            if followed is not None and followed is topics[topic_id]:
                self._install(followed, shape, chain, scan.revision)
        for topic_id, error in scan.errors.items():
            if topic_id not in self._failed:
                log.warning(
                    "The chain of %s cannot be updated now: %s",
                    topics[topic_id].part.name,
                    error,
                    extra={"topic": topics[topic_id].part.name},
                )
        self._failed = frozenset(scan.errors)
        if all(topic_id in topics for topic_id in self._topics):
            self._seen = scan.revision  # else topics followed meanwhile need the changes since the old revision

    def _scan_changed(self, topics: Mapping[TopicId, _Followed], seen: int, failed: Collection[TopicId]) -> _Scan:
        """Scan the topics that changed since a revision, and those that failed before. Runs in a thread."""
        view = self._root.store.view(durable=True)
        if view.state.revision == seen and not failed:
            return _Scan(seen, {}, {})
        changed = view.state.chains_since(seen)
        due = [
            followed
            for topic_id, followed in topics.items()
            if changed is None or topic_id in failed or self._has_changed(view, followed, changed)
        ]
        if any(self._is_attached_behind(view, TopicId(followed.part.topic_id)) for followed in due):
            for incarnation in self._incarnations:
                self._loop.call_soon_threadsafe(incarnation.scan_metadata)
        return self._extents(view, due)

    def _has_changed(self, view: View, followed: _Followed, changed: ChangedChains) -> bool:
        topic_id, open_in = followed.part.topic_id, followed.shape.open_in
        if topic_id in changed.shaped:
            return True
        if any(open_in == incarnation.id for incarnation in self._incarnations):
            return False  # sealing entries of the broker's own open ledger does not change the chain
        if topic_id in changed.grown:
            return True
        owner = None if open_in is None else view.get(IncarnationRecord, open_in)
        return owner is not None and owner.state == "CLOSED"

    def _is_attached_behind(self, view: View, topic_id: TopicId) -> bool:
        """Return True if the broker must continue in a new ledger to make ledgers visible that Spark attached."""
        return self._own_ledger(topic_id) is not None and has_attached_behind(view, topic_id)

    def _own_ledger(self, topic_id: TopicId) -> OpenLedger | None:
        """Return the ledger of a topic that this broker has open; None if it has none."""
        ledgers = (incarnation.ledgers.get(topic_id) for incarnation in self._incarnations)
        return next((ledger for ledger in ledgers if ledger is not None), None)

    def _scan(self, topics: Collection[_Followed], view: View | None) -> _Scan:
        return self._extents(view or self._root.store.view(durable=True), topics)

    def _extents(self, view: View, topics: Collection[_Followed]) -> _Scan:
        chains: dict[TopicId, tuple[ChainShape, LedgerChain]] = {}
        errors: dict[TopicId, PulsarpyError] = {}
        for followed in topics:
            topic_id = TopicId(followed.part.topic_id)
            try:
                shape = self._shape(view, followed)
            except PulsarpyError as error:
                errors[topic_id] = error
            else:
                chains[topic_id] = shape, LedgerChain(shape.extents)
        return _Scan(view.state.revision, chains, errors)

    def _shape(self, view: View, followed: _Followed) -> ChainShape:
        topic_id, known = TopicId(followed.part.topic_id), followed.shape
        try:
            return chain_shape(view, topic_id, known)
        except UnknownEndError:
            with closing(Tail(self._root)) as tail:
                return chain_shape(tail.read_view([followed.part], view), topic_id, known)

    # -- installing ----------------------------------------------------------------------------------------------------

    def _install(
        self, followed: _Followed, shape: ChainShape, chain: LedgerChain, revision: int, *, notifies: bool = True
    ) -> None:
        """Apply a scan to a topic's chain, and call the listener if it changed; an older scan is ignored."""
        if revision < followed.revision:
            return
        followed.revision = revision
        before, followed.shape = followed.shape.extents, shape
        extents = shape.extents
        if extents and not extents[-1].ended:
            chain.grow_ledger(extents[-1].ledger, self._known_end(followed, extents[-1]))
        if _is_same(before, extents):
            last = extents[-1].ledger
            if chain.readable_end(last) > followed.chain.readable_end(last):
                followed.chain.grow_ledger(last, chain.readable_end(last))
                if notifies:
                    followed.listener.on_chain_grew(followed.chain)
        elif extents or before:
            followed.chain = chain
            # Ledgers that had not ended: the last one in the metadata, and later ones that only the broker knew.
            candidates = {*followed.acknowledged, *(extent.ledger for extent in before[-1:] if not extent.ended)}
            ended = sorted(ledger for ledger in candidates if self._has_ended(shape, ledger))
            for ledger in ended:
                followed.acknowledged.pop(ledger, None)
            if notifies:
                followed.listener.on_chain_changed(followed.chain, ended)
        self._installed.set()
        self._installed = asyncio.Event()

    def _known_end(self, followed: _Followed, extent: LedgerExtent) -> int:
        """Return the entry id after a ledger's last acknowledged entry, which may not be committed yet."""
        own = self._own_ledger(TopicId(followed.part.topic_id))
        ends = [extent.end, followed.acknowledged.get(extent.ledger, 0), followed.chain.readable_end(extent.ledger)]
        if own is not None and own.ledger_id == extent.ledger:
            ends.append(own.next - own.outstanding)
        return max(ends)

    @staticmethod
    def _has_ended(shape: ChainShape, ledger: LedgerId) -> bool:
        """Return True if a ledger is before the last visible one, or is the last one and has ended."""
        last = shape.extents[-1] if shape.extents else None
        return last is None or ledger < last.ledger or (ledger == last.ledger and last.ended)


def _is_same(before: tuple[LedgerExtent, ...], now: tuple[LedgerExtent, ...]) -> bool:
    """Return True if two chains differ at most in the end of their last ledger."""
    if len(before) != len(now) or not now or before[:-1] != now[:-1]:
        return False
    last, same = now[-1], before[-1]
    return last == same or (
        not last.ended and (last.ledger, last.first, last.ended) == (same.ledger, same.first, same.ended)
    )
