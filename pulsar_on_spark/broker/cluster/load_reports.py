"""Exchange of loads among the brokers of a root: each broker overwrites a small object of its own, like a lease."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pulsar_on_spark.broker.cluster.load import BrokerLoad
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.leases.contract import LeaseStore

REPORT_EVERY_S: Final = 15.0
FRESH_S: Final = 60.0
"""Time in seconds after which a report that has not changed is ignored, on the clock of the broker that reads it."""


class _Seen(NamedTuple):
    content: bytes
    changed_s: float


class LoadReports:
    """The load reports of all brokers of a root, of which this broker writes its own.

    Args:
        store: The storage of the reports.
        incarnation: The id of this broker's incarnation.
        clock: Returns the monotonic time, in seconds.
    """

    def __init__(
        self, store: LeaseStore, incarnation: IncarnationId, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._counter = 0
        self._seen: dict[str, _Seen] = {}
        self._exchanging: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, BrokerLoad]:
        """The loads that were reported within `FRESH_S`, by incarnation."""
        fresh = (seen.content for seen in self._seen.values() if self._clock() - seen.changed_s < FRESH_S)
        return {load.incarnation: load for content in fresh if (load := BrokerLoad.parse(content)) is not None}

    def start(self, measure: Callable[[], BrokerLoad], has_others: Callable[[], bool]) -> None:
        """Start to write this broker's report and to read all reports, every `REPORT_EVERY_S`.

        Args:
            measure: Returns the load of this broker; called in the event loop at each report.
            has_others: Returns True if there are other brokers. While there are none, nothing is written or read.
        """

        async def exchange() -> None:
            if has_others():
                await asyncio.to_thread(self._exchange, measure())

        complaint = "The loads of brokers cannot be exchanged now"
        self._exchanging = asyncio.create_task(every(REPORT_EVERY_S, exchange, complaint), name="load reports")

    async def stop(self) -> None:
        """Stop reporting. The last report stays, and other brokers ignore it once it is old."""
        if self._exchanging is not None:
            self._exchanging.cancel()
            await asyncio.gather(self._exchanging, return_exceptions=True)

    def _exchange(self, load: BrokerLoad) -> None:
        """Write this broker's report and read the reports of all brokers; runs in a thread.

        Raises:
            StorageError: the store cannot be written or read.
        """
        if self._counter == 0:
            self._store.prepare(time.time())
        self._counter += 1
        self._store.read(self._incarnation)
        self._store.write(self._incarnation, self._token, load.encode(self._counter))
        stored, now_s = {each.name: each.content for each in self._store.read_all()}, self._clock()
        known = self._seen
        self._seen = {
            name: known[name] if name in known and known[name].content == content else _Seen(content, now_s)
            for name, content in stored.items()
        }
