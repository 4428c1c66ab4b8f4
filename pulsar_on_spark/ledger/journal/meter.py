"""Counters of a journal's work, updated once for each group, for metrics and status."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter

from pulsar_on_spark.ledger.journal.groups import Group
from pulsar_on_spark.model.latencies import Latencies


class JournalMeter:
    """Counters of one journal. Methods belong to the journal's event loop.

    Attributes:
        groups: Number of groups that were sent; each is one frame.
        records: Number of entries and cursor records in these groups.
        payload_bytes: Bytes of these entries and records.
        writes: Durations from the sending of a group until an ack quorum of paths had synced it.
    """

    def __init__(self) -> None:
        self.groups = self.records = self.payload_bytes = 0
        self.writes = Latencies()
        self._sent_s: deque[float] = deque()

    def sent(self, group: Group) -> None:
        """Count a group that was sent to the paths."""
        self.groups += 1
        self.records += group.records
        self.payload_bytes += group.payload_bytes
        self._sent_s.append(perf_counter())

    def count_acknowledged(self, groups: Sequence[Group]) -> None:
        """Record that the next groups, in the order of sending, are durable."""
        now_s = perf_counter()
        for _ in groups:
            self.writes.observe(now_s - self._sent_s.popleft())
