"""The reading process: runs jobs from a pipe and fills slabs, until the broker closes its end of the pipe."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from multiprocessing.connection import Connection
from typing import NamedTuple

from pulsar_on_spark.broker.reading.catch_up import CatchUp
from pulsar_on_spark.broker.reading.jobs import (
    Deferred,
    Failed,
    Filled,
    FillJob,
    FindJob,
    FoundAt,
    InLaneError,
    Job,
    Lane,
    Large,
    Outcome,
)
from pulsar_on_spark.broker.reading.slabs import Run, SlabWriter
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.arrow_start import start_arrow_without_pandas
from pulsar_on_spark.model.errors import PulsarpyError, StorageError
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.giving_way import give_way
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.rows import StoredEntry

log = logging.getLogger(__name__)

THREADS = {Lane.SEALED: 1, Lane.COLD: 2, Lane.JOURNALS: 1}
"""Threads of each lane."""
SUSPENDED = {Lane.SEALED: 4, Lane.COLD: 4, Lane.JOURNALS: 32}
"""Maximum number of suspended reads, which a later job can continue; each holds a decoded record batch, or a frame."""
IDLE_S = 30.0
"""Time without reads after which files are closed, in seconds."""


def run(
    log_settings: logs.Settings,
    root: RootPlace,
    max_message_size_bytes: int,
    slabs: list[memoryview],
    jobs: Connection,
) -> None:
    """Run the jobs of the pipe until the broker closes its end of the pipe.

    Args:
        log_settings: The settings of the broker's log.
        root: The root's directory or URL.
        max_message_size_bytes: The broker's `maxMessageSize`.
        slabs: The slabs of shared memory, by number.
        jobs: The pipe, which receives jobs and sends outcomes.
    """
    give_way()
    gc.freeze()
    logs.configure(*log_settings)
    start_arrow_without_pandas()
    _Worker(RootHandle.open(root), max_message_size_bytes, slabs, jobs).run()


class _Worker:
    """The threads of the process, by lane. A job that reaches an entry of another lane is answered with `Deferred`."""

    def __init__(
        self, root: RootHandle, max_message_size_bytes: int, slabs: list[memoryview], jobs: Connection
    ) -> None:
        self._jobs = jobs
        self._sending = threading.Lock()
        self._reads = {
            lane: _Reads(CatchUp(root, max_message_size_bytes, lane), slabs, SUSPENDED[lane]) for lane in Lane
        }

    def run(self) -> None:
        lanes = {lane: ThreadPoolExecutor(THREADS[lane], lane.name.lower()) for lane in Lane}
        checked_s = time.monotonic()
        while True:
            if time.monotonic() - checked_s >= IDLE_S / 2:
                checked_s = time.monotonic()
                for lane, executor in lanes.items():
                    executor.submit(self._reads[lane].close_idle)
            try:
                if not self._jobs.poll(IDLE_S / 2):
                    continue
                job: Job = self._jobs.recv()
            except (EOFError, OSError):
                break
            lanes[job.lane].submit(self._do, job, self._reads[job.lane])
        for executor in lanes.values():
            executor.shutdown(cancel_futures=True)
        for reads in self._reads.values():
            reads.close()

    def _do(self, job: Job, reads: _Reads) -> None:
        large: bytes | None = None
        outcome: Outcome
        try:
            if isinstance(job, FindJob):
                position = reads.catch_up.position_at(job.source, job.start, job.end, job.publish_ms)
                outcome = FoundAt(job.number, position)
            else:
                outcome, large = reads.fill(job)
        except InLaneError as error:
            outcome = Deferred(job.number, error.lane, error.start)
        except PulsarpyError as error:
            outcome = Failed(job.number, error)
        except Exception as error:  # other jobs are not affected
            log.exception("A read of %s failed", job.source.part.name, extra={"topic": job.source.part.name})
            outcome = Failed(
                job.number, StorageError(f"A read of {job.source.part.name} failed ({error!r}): report this as a bug.")
            )
        with self._sending:
            self._jobs.send(outcome)
            if large is not None:
                self._jobs.send_bytes(large)


class _Suspended(NamedTuple):
    """A read that stopped before an entry, and the time of the stop."""

    entry: StoredEntry
    following: Generator[StoredEntry]
    at_s: float


class _Reads:
    """The reads of one lane, including those suspended at a full slab."""

    def __init__(self, catch_up: CatchUp, slabs: list[memoryview], max_suspended: int) -> None:
        self.catch_up = catch_up
        self._slabs = slabs
        self._max_suspended = max_suspended
        self._suspended: OrderedDict[tuple[str, int, int], _Suspended] = OrderedDict()
        self._lock = threading.Lock()
        self._used_s = time.monotonic()

    def fill(self, job: FillJob) -> tuple[Filled | Large, bytes | None]:
        """Read entries into the job's slab (errors as `CatchUp.read`).

        Returns:
            The outcome, and the bytes of an entry that is larger than the slab; None for the bytes if none is.
        """
        self._used_s = time.monotonic()
        first = job.ranges[0]
        with self._lock:
            stopped = self._suspended.pop((job.source.id, first.ledger, first.first), None)
        following = self.catch_up.read(job.source, job.ranges) if stopped is None else stopped.following
        slab = SlabWriter(self._slabs[job.slab])
        try:
            for entry in following if stopped is None else chain((stopped.entry,), following):
                if (len(slab) and slab.size_bytes >= job.ahead_bytes) or not slab.add(entry):
                    if len(slab):
                        self._suspend(job.source.id, entry, following)
                        next_ = (entry.ledger_id, entry.entry_id)
                        return Filled(job.number, slab.finish(), next_, slab.ack_sets), None
                    run = Run(entry.ledger_id, entry.entry_id, entry.entry_id + 1)
                    return Large(job.number, run, entry.ack_set), entry.data
        except (PulsarpyError, InLaneError):
            if not len(slab):
                raise
            # The job whose first entry is the unreadable one gets the error.
        return Filled(job.number, slab.finish(), None, slab.ack_sets), None

    def close_idle(self) -> None:
        """Close files that were not read for `IDLE_S`: a deleted file takes space while it is open."""
        self._close_suspended(before_s=time.monotonic() - IDLE_S)
        if time.monotonic() - self._used_s >= IDLE_S:
            self.catch_up.close()

    def close(self) -> None:
        """Close all files."""
        self._close_suspended(before_s=time.monotonic())
        self.catch_up.close()

    def _suspend(self, source_id: str, entry: StoredEntry, following: Generator[StoredEntry]) -> None:
        key = (source_id, entry.ledger_id, entry.entry_id)
        with self._lock:
            former = self._suspended.pop(key, None)
            if former is None and len(self._suspended) == self._max_suspended:
                former = self._suspended.popitem(last=False)[1]
            self._suspended[key] = _Suspended(entry, following, time.monotonic())
        if former is not None:
            former.following.close()

    def _close_suspended(self, before_s: float) -> None:
        with self._lock:
            old = [key for key, suspended in self._suspended.items() if suspended.at_s <= before_s]
            closed = [self._suspended.pop(key) for key in old]
        for suspended in closed:
            suspended.following.close()
