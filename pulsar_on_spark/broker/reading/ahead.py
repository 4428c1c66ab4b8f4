"""Read-ahead: entries from the reading process stay in their slab of shared memory until another read needs the slab.

A read that continues where a slab ends fetches twice as many bytes as the read before, up to a whole slab. When a
consumer is past half of a slab, the next slab is fetched. So a single entry in the middle of a backlog is cheap to
read, and a consumer that reads a whole backlog finds the next entries in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pulsar_on_spark.broker.reading.jobs import Deferred, EntrySource, Filled, FillJob, Lane, Large, Outcome
from pulsar_on_spark.broker.reading.process import ReadingProcess
from pulsar_on_spark.broker.reading.slabs import Slab, SlabWriter, slab_bytes
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.entries.rows import StoredEntry
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange

log = logging.getLogger(__name__)

FIRST_BYTES = 1024 * 1024
"""Bytes that a read fetches if it does not continue where a slab ends."""
_OWN_MEMORY = -1
"""Slab number of an entry larger than a slab, which has its own memory. Only the last such entry and pinned ones are
kept."""
_AT_ONCE = {Lane.COLD: 2, Lane.JOURNALS: 2}
"""Maximum number of slabs held by jobs of a lane whose reads may wait long, so that the other lanes find free slabs."""
_MAX_RANGES = 256
"""Maximum number of ranges in one job."""


@dataclass(slots=True, eq=False)
class Fetched:
    """A filled slab, which is not evicted while it is pinned.

    Attributes:
        slab: The entries.
        number: The slab's number; `_OWN_MEMORY` for an entry larger than a slab.
        source_id: The id of the entries' source.
        more: True if the source may have entries after the slab's last one.
        ahead_bytes: Number of bytes that the read was to fetch.
        pins: Number of callers that are reading the slab.
        is_continued: True if the next slab was fetched already.
    """

    slab: Slab
    number: int
    source_id: str
    more: bool
    ahead_bytes: int
    pins: int = 0
    is_continued: bool = False


@dataclass(slots=True, eq=False)
class _Fetch:
    """A running job, and the number of callers that wait for it."""

    task: asyncio.Task[Fetched]
    waiters: int = 0


class ReadAhead:
    """The filled slabs of all sources of entries. Call all methods in one event loop.

    Args:
        process: The process that fills the slabs.
    """

    def __init__(self, process: ReadingProcess) -> None:
        self._process = process
        self._max_bytes = process.slab_entries_bytes
        self._free = list(range(len(process.slabs)))
        self._recent: OrderedDict[Fetched, None] = OrderedDict()
        """Filled slabs, the least recently used one first."""
        self._of_source: dict[str, list[Fetched]] = {}
        self._fetches: dict[tuple[str, int, int], _Fetch] = {}
        self._turns = {lane: asyncio.Semaphore(_AT_ONCE.get(lane, len(process.slabs))) for lane in Lane}
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def close(self) -> None:
        """Cancel running fetches."""
        tasks = [fetch.task for fetch in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def copy_entries(self, source_id: str, ledger: LedgerId, first: int, end: int, max_bytes: int) -> list[bytes]:
        """Return the bytes of consecutive entries from `first` on, all from one slab; none if `first` is in no slab.

        Args:
            source_id: The id of the entries' source.
            ledger: The entries' ledger.
            first: The first entry.
            end: The entry id after the last entry.
            max_bytes: Maximum number of bytes; the first entry is returned even if it is larger.
        """
        for fetched in self._of_source.get(source_id, ()):
            entries = fetched.slab.copy_entries(ledger, first, end, max_bytes)
            if entries:
                return entries
        return []

    def ack_set(self, source_id: str, ledger: LedgerId, entry: int) -> int:
        """Return the `StoredEntry.ack_set` of an entry that `copy_entries` has just returned; 0 if it has none."""
        ack_sets = (fetched.slab.ack_sets.get((ledger, entry)) for fetched in self._of_source.get(source_id, ()))
        return next((bits for bits in ack_sets if bits), 0)

    async def fetch(self, source: EntrySource, ranges: Sequence[EntryRange]) -> Fetched:
        """Fetch entries into a slab, at least the first one of the ranges; the caller must `release` the result.

        Raises:
            PulsarpyError: the first entry cannot be read.
        """
        fetch = self._fetch(source, ranges)
        fetch.waiters += 1
        try:
            return await asyncio.shield(fetch.task)
        except BaseException:
            if fetch.task.done() and not fetch.task.cancelled() and fetch.task.exception() is None:
                self.release(fetch.task.result())
            else:
                fetch.waiters -= 1
            raise

    def release(self, fetched: Fetched) -> None:
        """Unpin a slab that a caller of `fetch` has finished reading."""
        fetched.pins -= 1
        if not fetched.pins:
            self._wake()

    def taken(self, source: EntrySource, ledger: LedgerId, entry: EntryId) -> None:
        """Record that a consumer got entries up to this one, and fetch the next ones if more reads are likely."""
        for fetched in self._of_source.get(source.id, ()):
            if fetched.slab.is_past_half(ledger, entry):
                self._recent.move_to_end(fetched)
                is_likely = fetched.more and fetched.ahead_bytes > FIRST_BYTES and not fetched.is_continued
                if is_likely and not self._waiting and (self._free or self._evictable() is not None):
                    fetched.is_continued = True
                    ledger_id, first = fetched.slab.next
                    self._fetch(source, [EntryRange(LedgerId(ledger_id), first, first + 1)])
                return

    def _fetch(self, source: EntrySource, ranges: Sequence[EntryRange]) -> _Fetch:
        position = (ranges[0].ledger, ranges[0].first)
        fetch = self._fetches.get((source.id, *position))
        if fetch is None:
            before = next((f for f in self._of_source.get(source.id, ()) if f.slab.next == position), None)
            ahead_bytes = FIRST_BYTES if before is None else min(2 * before.ahead_bytes, self._max_bytes)
            task = asyncio.create_task(self._fetched(source, tuple(ranges[:_MAX_RANGES]), ahead_bytes))
            task.add_done_callback(_log_error)
            fetch = self._fetches[source.id, *position] = _Fetch(task)
        return fetch

    async def _fetched(self, source: EntrySource, ranges: tuple[EntryRange, ...], ahead_bytes: int) -> Fetched:
        try:
            slab, outcome, large = await self._filled(source, ranges, ahead_bytes)
        finally:
            fetch = self._fetches.pop((source.id, ranges[0].ledger, ranges[0].first))
        if isinstance(outcome, Large):
            self._give_back(slab)
            assert large is not None, "a large entry's bytes follow"
            for large_one in [slab for slab in self._recent if slab.number == _OWN_MEMORY and not slab.pins]:
                self._evict(large_one)
            fetched = Fetched(_alone(outcome, large), _OWN_MEMORY, source.id, more=True, ahead_bytes=FIRST_BYTES)
        else:
            assert isinstance(outcome, Filled)
            filled = Slab(self._process.slabs[slab], outcome.runs, outcome.next, outcome.ack_sets)
            fetched = Fetched(filled, slab, source.id, outcome.next is not None, ahead_bytes)
        fetched.pins = fetch.waiters
        self._recent[fetched] = None
        self._of_source.setdefault(source.id, []).append(fetched)
        if not fetched.pins:
            self._wake()
        return fetched

    async def _filled(
        self, source: EntrySource, ranges: tuple[EntryRange, ...], ahead_bytes: int
    ) -> tuple[int, Outcome, bytes | None]:
        """Fill a slab, in the lane that has the first entry.

        Returns:
            The slab's number, the outcome, and the bytes of the entry if the outcome is `Large`, else None.
        """
        lane = Lane.SEALED
        while True:
            async with self._turns[lane]:
                slab = await self._empty_slab()
                try:
                    outcome, large = await self._process.run_job(
                        partial(FillJob, source=source, ranges=ranges, slab=slab, ahead_bytes=ahead_bytes, lane=lane)
                    )
                except BaseException:
                    self._give_back(slab)
                    raise
            if not isinstance(outcome, Deferred):
                return slab, outcome, large
            self._give_back(slab)
            lane = outcome.lane

    # -- slabs ---------------------------------------------------------------------------------------------------------

    async def _empty_slab(self) -> int:
        while True:
            if self._free:
                return self._free.pop()
            oldest = self._evictable()
            if oldest is not None:
                self._evict(oldest)
                continue
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def _evictable(self) -> Fetched | None:
        return next((fetched for fetched in self._recent if not fetched.pins), None)

    def _evict(self, fetched: Fetched) -> None:
        del self._recent[fetched]
        of_source = self._of_source[fetched.source_id]
        of_source.remove(fetched)
        if not of_source:
            del self._of_source[fetched.source_id]
        if fetched.number != _OWN_MEMORY:
            self._free.append(fetched.number)

    def _give_back(self, slab: int) -> None:
        self._free.append(slab)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


def _alone(large: Large, data: bytes) -> Slab:
    """Create a slab for a single entry that is larger than the shared ones."""
    run = large.run
    memory = memoryview(bytearray(slab_bytes(len(data))))
    writer = SlabWriter(memory)
    assert writer.add(StoredEntry(LedgerId(run.ledger), EntryId(run.first), data, large.ack_set))
    return Slab(memory, writer.finish(), ack_sets=writer.ack_sets)


def _log_error(fetch: asyncio.Task[Fetched]) -> None:
    """Log the error of a fetch: it is raised in waiting callers, but a read-ahead may have no caller."""
    if not fetch.cancelled() and (error := fetch.exception()) is not None:
        log.debug("Reading ahead failed: %s", error)
