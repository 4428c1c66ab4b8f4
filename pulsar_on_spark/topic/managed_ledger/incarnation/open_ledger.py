"""A ledger that a broker appends to, in memory: the next id, and what is not acknowledged yet."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import ClosedLedger


@dataclass(slots=True, eq=False)
class OpenLedger:
    """A ledger that entries are appended to.

    Attributes:
        part: The topic.
        ledger_id: The id.
        next: The next entry's id.
        outstanding: Entries whose outcome is not known yet.
        bytes: Of all entries, as they were received.
        opened_s: When it was opened, on the monotonic clock.
        used_s: When the last entry was appended, or the ledger opened, on the monotonic clock.
    """

    part: TopicPart
    ledger_id: LedgerId
    next: int = 0
    outstanding: int = 0
    bytes: int = 0
    opened_s: float = field(default_factory=time.monotonic)
    used_s: float = field(default_factory=time.monotonic)
    _drained: asyncio.Event | None = None

    def closed(self) -> ClosedLedger:
        """It as it is committed; once it is drained, and nothing is appended to it any more."""
        return ClosedLedger(self.part, self.ledger_id, self.next)

    async def drained(self) -> None:
        """Wait until the outcome of every entry is known; nothing may be appended meanwhile."""
        if self.outstanding:
            self._drained = self._drained or asyncio.Event()
            await self._drained.wait()

    def settle(self, entries: int) -> None:
        """The outcome of so many entries is known."""
        self.outstanding -= entries
        if not self.outstanding and self._drained is not None:
            self._drained.set()
            self._drained = None
