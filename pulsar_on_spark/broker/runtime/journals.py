"""A broker's journals: one per quorum that its topics use, each with an incarnation and a sealing process.

The first one has the broker's default quorum, stores all cursors and lives as long as the broker. Another one is opened
when a topic with its quorum is loaded, and closed when no topic has used it for a while; housekeeping seals the entries
that are left in it. If any journal is taken over, the broker stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pulsar_on_spark.ledger.journal.groups import JournalLimits
from pulsar_on_spark.ledger.journal.sinks import EntrySink
from pulsar_on_spark.model.errors import JournalUnavailableError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, TopicId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.topic.catalog.policies.quorums import MAX_QUORUMS
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.roll_over import RollOver
from pulsar_on_spark.topic.managed_ledger.sealing.process import SealingPolicy, SealingProcess

log = logging.getLogger(__name__)

LEASE_S: Final = 6.0
"""Time after which other brokers take over from a broker that does not renew its lease, in seconds."""
MAX_JOURNALS: Final = 1 + MAX_QUORUMS
CLOSE_UNUSED_S: Final = 600.0
"""Time without use after which a journal is closed, in seconds."""


@dataclass(slots=True, eq=False)
class Journal:
    """A journal of a broker.

    Attributes:
        incarnation: The incarnation that writes the journal.
        sealing: The process that seals the journal's entries in segments.
        topics: The ids of the loaded topics that use the journal.
        used_s: Time at which the journal was opened or last lost a topic, in seconds on the monotonic clock.
    """

    incarnation: Incarnation
    sealing: SealingProcess
    topics: set[TopicId] = field(default_factory=set)
    used_s: float = field(default_factory=time.monotonic)

    @property
    def quorum(self) -> str:
        """The quorum as `WRITE/ACK`, for metrics and status; unique among the journals of a broker."""
        return f"{self.incarnation.quorum.write}/{self.incarnation.quorum.ack}"


class Journals:
    """All journals of a broker; iterating yields their incarnations. Call other methods in the broker's event loop.

    Args:
        root: The open root.
        entry_sink: Receives the outcomes of entries of all journals.
        on_ended: Called with the reason when a journal ends unexpectedly, which ends the broker.
        sealing: The policy of the sealing processes.
        roll_over: The limits at which a topic continues in a new ledger.
        limits: The bounds of each journal.
        changed: Called with the ids of all incarnations after a journal was opened, before it has entries, and after
            journals were closed.
    """

    def __init__(
        self,
        root: RootHandle,
        entry_sink: EntrySink,
        on_ended: Callable[[str], None],
        sealing: SealingPolicy,
        roll_over: RollOver,
        limits: JournalLimits,
        changed: Callable[[list[IncarnationId]], None],
    ) -> None:
        self._root = root
        self._entry_sink = entry_sink
        self._on_ended = on_ended
        self._sealing = sealing
        self._roll_over = roll_over
        self._limits = limits
        self._changed = changed
        self._journals: tuple[Journal, ...] = ()
        self._opening = asyncio.Lock()

    def __iter__(self) -> Iterator[Incarnation]:
        return iter([journal.incarnation for journal in self._journals])

    @property
    def first(self) -> Journal:
        """The journal with the broker's default quorum."""
        return self._journals[0]

    @property
    def others(self) -> Sequence[Journal]:
        """All journals except the first."""
        return self._journals[1:]

    @property
    def all(self) -> Sequence[Journal]:
        """All journals, the one with the default quorum first."""
        return self._journals

    async def start(self, quorum: Quorum) -> None:
        """Open the first journal, with the broker's default quorum (errors as `Incarnation.start`)."""
        await self._open(quorum)

    async def start_sealing(self) -> None:
        """Start the sealing processes that are not running."""
        for journal in self._journals:
            if not journal.sealing.is_alive():
                await asyncio.to_thread(journal.sealing.start)

    async def acquire_journal(self, topic_id: TopicId, quorum: Quorum | None) -> Incarnation:
        """Return the incarnation of a topic's journal, which the topic uses until `release_journal`; open it if needed.

        The topic gets the journal that has its open ledger, else the journal of the quorum.

        Args:
            topic_id: The topic.
            quorum: The quorum that the topic's policies require; None for the broker's default.

        Raises:
            JournalUnavailableError: `MAX_JOURNALS` others are open.
            PulsarpyError: as `Incarnation.start`.
        """
        async with self._opening:
            journal = next((journal for journal in self._journals if topic_id in journal.incarnation.ledgers), None)
            if journal is None:
                journal = await self._of(quorum or self.first.incarnation.quorum)
            self.release_journal(topic_id)
            journal.topics.add(topic_id)
            return journal.incarnation

    def release_journal(self, topic_id: TopicId) -> None:
        """Note that a topic no longer uses its journal; do nothing if it uses none."""
        for journal in self._journals:
            if topic_id in journal.topics:
                journal.topics.discard(topic_id)
                journal.used_s = time.monotonic()

    async def _of(self, quorum: Quorum) -> Journal:
        journal = next((journal for journal in self._journals if is_same(journal.incarnation.quorum, quorum)), None)
        if journal is not None:
            return journal
        if len(self._journals) >= MAX_JOURNALS:
            raise JournalUnavailableError(
                f"A journal of quorum {quorum} cannot be opened, because {MAX_JOURNALS} others are open: use fewer "
                "different quorums in policies."
            )
        opened = await self._open(quorum)
        await asyncio.to_thread(opened.sealing.start)
        return opened

    async def _open(self, quorum: Quorum) -> Journal:
        incarnation = await Incarnation.start(
            self._root,
            self._entry_sink,
            on_ended=self._on_ended,
            quorum=quorum,
            limits=self._limits,
            lease_duration_s=LEASE_S,
            roll_over=self._roll_over,
        )
        sealing = SealingProcess(self._root.place, incarnation.id, self._sealing)
        opened = Journal(incarnation, sealing)
        self._journals += (opened,)
        self._changed([incarnation.id for incarnation in self])
        return opened

    # -- background work -----------------------------------------------------------------------------------------------

    def look_at_sealing(self) -> bool:
        """Drop deleted files from the journals' state; return True if a journal has too many unsealed bytes."""
        for journal in self._journals:
            journal.incarnation.forget_trimmed_frames(journal.sealing.deleted_before)
        return any(journal.sealing.is_over_lag_limit() for journal in self._journals)

    async def restart_sealing(self) -> None:
        """Restart sealing processes that have ended unexpectedly."""
        if not all(journal.sealing.is_alive() for journal in self._journals):
            log.warning("A sealing process has ended unexpectedly and is restarted.")
            await self.start_sealing()

    async def close_unused(self, now_s: float) -> None:
        """Close the journals that no topic has used for `CLOSE_UNUSED_S`.

        Args:
            now_s: The current time in seconds, on the monotonic clock.
        """
        async with self._opening:
            for journal in self.others:
                is_used = journal.topics or journal.incarnation.ledgers or now_s - journal.used_s < CLOSE_UNUSED_S
                if not is_used:
                    self._journals = tuple(other for other in self._journals if other is not journal)
                    await self._close(journal)
            self._changed([incarnation.id for incarnation in self])

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close all journals with their ledgers, the first journal last.

        Raises:
            PulsarpyError: the first journal could not be closed.
        """
        for journal in self._journals[:0:-1]:
            await self._close(journal)
        await self.first.incarnation.stop()

    async def stop_sealing(self) -> None:
        """Stop the sealing processes of all journals."""
        for journal in self._journals:
            await asyncio.to_thread(journal.sealing.stop)

    @staticmethod
    async def _close(journal: Journal) -> None:
        """Close a journal and stop its sealing; a journal that cannot be closed is recovered by its next owner."""
        try:
            await journal.incarnation.stop()
        except PulsarpyError as error:
            log.warning("The journal %s is not closed: %s", journal.incarnation.id, error)
        await asyncio.to_thread(journal.sealing.stop)


def is_same(one: Quorum, other: Quorum) -> bool:
    """Return True if one journal can serve both quorums: they need the same number of copies and acknowledgements."""
    return (one.write, one.ack) == (other.write, other.ack)
