"""A ledger that a broker appends to, in memory: the next id, and the entries that are not acknowledged yet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import ClosedLedger

_C_co = TypeVar("_C_co", covariant=True)
_ledger_of = itemgetter(0)


@dataclass(slots=True, eq=False)
class OpenLedger:
    """A ledger that entries are appended to.

    Attributes:
        part: The topic.
        ledger_id: The id.
        next: Id of the next entry.
        outstanding: Number of entries whose outcome is not known yet.
        bytes: Size of all entries, as received.
        opened_s: Time of the opening, on the monotonic clock.
        used_s: Time of the last append, or else of the opening, on the monotonic clock.
    """

    part: TopicPart
    ledger_id: LedgerId
    next: int = 0
    outstanding: int = 0
    bytes: int = 0
    opened_s: float = field(default_factory=time.monotonic)
    used_s: float = field(default_factory=time.monotonic)
    _awaiting: list[asyncio.Event] = field(default_factory=list)
    """Set, and forgotten, when the outcome of every entry is known."""

    def closed(self) -> ClosedLedger:
        """The ledger to commit as closed; only after it is retired and drained."""
        return ClosedLedger(self.part, self.ledger_id, self.next)

    async def wait_until_drained(self) -> None:
        """Wait until the outcome of every entry is known; the caller must append no entries meanwhile."""
        if self.outstanding:
            drained = asyncio.Event()
            self._awaiting.append(drained)
            await drained.wait()

    def retire(self, drained: asyncio.Event) -> None:
        """Mark the ledger as retired: no entries are appended, and the last open outcome, if any, sets `drained`."""
        if self.outstanding:
            self._awaiting.append(drained)

    def count_outcomes(self, entries: int) -> None:
        """Count this many outcomes."""
        self.outstanding -= entries
        if not self.outstanding and self._awaiting:
            for drained in self._awaiting:
                drained.set()
            self._awaiting.clear()


class Appended(NamedTuple, Generic[_C_co]):
    """An appended entry, with the context of the append call, as the sink of entries gets it."""

    ledger: OpenLedger
    entry_id: EntryId
    context: _C_co


def settle_entries(entries: Iterable[Appended[object]]) -> None:
    """Count the outcomes of these entries in their ledgers. The sink of entries calls this once for each entry."""
    for ledger, count in Counter(map(_ledger_of, entries)).items():
        ledger.count_outcomes(count)
