"""The state in memory of a ledger that a broker appends to: its next entry id, and its unacknowledged entries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import ClosedLedger

_C_co = TypeVar("_C_co", covariant=True)


@dataclass(slots=True, eq=False)
class OpenLedger:
    """A ledger to which a broker appends entries.

    Attributes:
        part: The topic.
        ledger_id: The ledger's id.
        next: Id of the next entry.
        outstanding: Number of entries whose outcome is not known yet.
        bytes: Size in bytes of all entries, as received.
        opened_s: Time of the opening, on the monotonic clock.
        used_s: Time of the last append, or of the opening if there was none, on the monotonic clock.
    """

    part: TopicPart
    ledger_id: LedgerId
    next: int = 0
    outstanding: int = 0
    bytes: int = 0
    opened_s: float = field(default_factory=time.monotonic)
    used_s: float = field(default_factory=time.monotonic)
    _awaiting: list[asyncio.Event] = field(default_factory=list)
    """Events that are set, and then removed, when the outcomes of all entries are known."""

    def closed(self) -> ClosedLedger:
        """Return the request to close the ledger. Call this only when the ledger is retired and drained."""
        return ClosedLedger(self.part, self.ledger_id, self.next)

    async def wait_until_drained(self) -> None:
        """Wait until the outcomes of all entries are known. No entries may be appended during the wait."""
        if self.outstanding:
            drained = asyncio.Event()
            self._awaiting.append(drained)
            await drained.wait()

    def retire(self, drained: asyncio.Event) -> None:
        """Declare that the caller appends no more entries. If outcomes are unknown, the last of them sets `drained`."""
        if self.outstanding:
            self._awaiting.append(drained)

    def count_outcomes(self, entries: int) -> None:
        """Record that the outcomes of this many more entries are known."""
        self.outstanding -= entries
        if not self.outstanding and self._awaiting:
            for drained in self._awaiting:
                drained.set()
            self._awaiting.clear()


class Appended(NamedTuple, Generic[_C_co]):
    """Appended entries, as the sink of entries gets them.

    Attributes:
        ledger: Their ledger.
        first: The id of the first entry; the ids of the others follow it.
        entries: The number of entries.
        context: The `context` argument of `Incarnation.append`.
    """

    ledger: OpenLedger
    first: EntryId
    entries: int
    context: _C_co


def settle_entries(runs: Iterable[Appended[object]]) -> None:
    """Record in their ledgers that the outcomes of these entries are known.

    The sink of entries must pass each of its contexts exactly once.
    """
    counts: Counter[OpenLedger] = Counter()
    for run in runs:
        counts[run.ledger] += run.entries
    for ledger, entries in counts.items():
        ledger.count_outcomes(entries)
