"""A broker's journals: one for each quorum that its topics ask for, with an incarnation and a sealing process each.

The first is of the broker's own quorum and has all cursors; it lasts as long as the broker. Another one begins when a
topic is loaded that asks for its quorum, and ends when nobody has for a while: its ledgers and its log are closed, and
housekeeping seals what is left. If any of them is taken over, all of the broker is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

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

MAX_JOURNALS: Final = 1 + MAX_QUORUMS
CLOSE_UNUSED_S: Final = 600.0
"""A journal that no loaded topic has used for so long is closed."""


@dataclass(slots=True, eq=False)
class Journal:
    """One of them.

    Attributes:
        incarnation: Takes entries.
        sealing: Seals it.
        topics: Who uses it.
        used_s: When somebody last did, on the monotonic clock.
    """

    incarnation: Incarnation
    sealing: SealingProcess
    topics: set[TopicId] = field(default_factory=set)
    used_s: float = field(default_factory=time.monotonic)

    @property
    def quorum(self) -> str:
        """Its copies as metrics and people are told, `WRITE/ACK`: no two journals of a broker have the same."""
        return f"{self.incarnation.quorum.write}/{self.incarnation.quorum.ack}"


class Journals:
    """All journals of a broker; iterating gives their incarnations. Methods but that belong to its event loop.

    Args:
        root: The root.
        entry_sink: Receives the outcome of entries from all of them.
        on_ended: Called with the reason when one of them is over: so is the broker.
        sealing: When each is sealed, and how fast.
        roll_over: When topics go on in new ledgers.
        changed: Called with the ids when there is another one, before anything is in it.
    """

    def __init__(
        self,
        root: RootHandle,
        entry_sink: EntrySink,
        on_ended: Callable[[str], None],
        sealing: SealingPolicy,
        roll_over: RollOver,
        changed: Callable[[list[IncarnationId]], None],
    ) -> None:
        self._root = root
        self._entry_sink = entry_sink
        self._on_ended = on_ended
        self._sealing = sealing
        self._roll_over = roll_over
        self._changed = changed
        self._journals: tuple[Journal, ...] = ()
        self._opening = asyncio.Lock()

    def __iter__(self) -> Iterator[Incarnation]:
        return iter([each.incarnation for each in self._journals])

    @property
    def first(self) -> Journal:
        """That of the broker's own quorum."""
        return self._journals[0]

    @property
    def others(self) -> Sequence[Journal]:
        """All but that."""
        return self._journals[1:]

    @property
    def all(self) -> Sequence[Journal]:
        """All of them, the first one first."""
        return self._journals

    async def start(self, quorum: Quorum) -> None:
        """Open the first one (errors as `Incarnation.start`)."""
        await self._open(quorum)

    async def start_sealing(self) -> None:
        """Start the sealing processes that have not been, or have died."""
        for each in self._journals:
            if not each.sealing.is_alive():
                await asyncio.to_thread(each.sealing.start)

    async def take(self, topic_id: TopicId, quorum: Quorum | None) -> Incarnation:
        """The journal for a topic, until `leave`; the first one for no quorum. One that has a ledger open keeps it.

        Raises:
            JournalUnavailableError: there are `MAX_JOURNALS` others.
            PulsarpyError: as `Incarnation.start`.
        """
        async with self._opening:
            found = next((each for each in self._journals if topic_id in each.incarnation.ledgers), None)
            if found is None:
                found = await self._of(quorum or self.first.incarnation.quorum)
            self.leave(topic_id)
            found.topics.add(topic_id)
            return found.incarnation

    def leave(self, topic_id: TopicId) -> None:
        """The topic is loaded no more."""
        for each in self._journals:
            if topic_id in each.topics:
                each.topics.discard(topic_id)
                each.used_s = time.monotonic()

    async def _of(self, quorum: Quorum) -> Journal:
        found = next((each for each in self._journals if is_same(each.incarnation.quorum, quorum)), None)
        if found is not None:
            return found
        if len(self._journals) >= MAX_JOURNALS:
            raise JournalUnavailableError(
                f"A journal of quorum {quorum} cannot be opened: {MAX_JOURNALS} others are open, let policies ask for "
                "fewer different quorums."
            )
        opened = await self._open(quorum)
        await asyncio.to_thread(opened.sealing.start)
        return opened

    async def _open(self, quorum: Quorum) -> Journal:
        incarnation = await Incarnation.start(
            self._root, self._entry_sink, on_ended=self._on_ended, quorum=quorum, roll_over=self._roll_over
        )
        sealing = SealingProcess(self._root.path, incarnation.id, self._sealing)
        opened = Journal(incarnation, sealing)
        self._journals += (opened,)
        self._changed([each.id for each in self])
        return opened

    # -- what the broker's surroundings do -----------------------------------------------------------------------------

    def look_at_sealing(self) -> bool:
        """Delete what is trimmed; whether sealing is too far behind."""
        for each in self._journals:
            each.incarnation.trimmed(each.sealing.deleted_before)
        return any(each.sealing.is_over_lag_limit() for each in self._journals)

    async def restart_sealing(self) -> None:
        """Start sealing processes again that have ended by themselves."""
        if not all(each.sealing.is_alive() for each in self._journals):
            log.warning("A sealing process has ended and is started again.")
            await self.start_sealing()

    async def close_unused(self, now_s: float) -> None:
        """Close those that nobody has used for a while.

        Args:
            now_s: Of the monotonic clock.
        """
        async with self._opening:
            for each in self.others:
                is_used = each.topics or each.incarnation.ledgers or now_s - each.used_s < CLOSE_UNUSED_S
                if not is_used:
                    self._journals = tuple(other for other in self._journals if other is not each)
                    await self._close(each)
            self._changed([each.id for each in self])

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close all ledgers and logs, the first journal last.

        Raises:
            PulsarpyError: that of the first journal could not be closed.
        """
        for each in self._journals[:0:-1]:
            await self._close(each)
        await self.first.incarnation.stop()

    async def stop_sealing(self) -> None:
        """End the sealing processes."""
        for each in self._journals:
            await asyncio.to_thread(each.sealing.stop)

    @staticmethod
    async def _close(journal: Journal) -> None:
        """Whoever comes next recovers what cannot be closed."""
        try:
            await journal.incarnation.stop()
        except PulsarpyError as error:
            log.warning("The journal %s is not closed: %s", journal.incarnation.id, error)
        await asyncio.to_thread(journal.sealing.stop)


def is_same(one: Quorum, other: Quorum) -> bool:
    """Whether a journal of one serves for the other: its files are on as many paths as there are copies."""
    return (one.write, one.ack) == (other.write, other.ack)
