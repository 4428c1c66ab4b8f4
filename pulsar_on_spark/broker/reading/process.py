"""The broker's side of its reading process, which decodes catch-up reads so that the event loop is not blocked.

    broker: job, a slab for its result ──> pipe ──> process (`worker.py`)
    broker: slab is filled             <── pipe <── process: entries in the slab, which is shared memory

If the process dies it is restarted, and its jobs are retried once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from ctypes import Array, c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.heap import BufferWrapper

from pulsar_on_spark.broker.reading import worker
from pulsar_on_spark.broker.reading.jobs import Failed, Job, Large, Outcome
from pulsar_on_spark.broker.reading.slabs import slab_bytes
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.objects import meter
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.giving_way import CONTEXT, start_giving_way
from pulsar_on_spark.topic.entries.cutting import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

SLABS = 6
"""Slabs for concurrent reads and read-ahead; each has the size of `maxMessageSize`, at least 5 MiB."""
_MARGIN_BYTES = 64 * 1024
"""Room for an entry's metadata besides the payload that `maxMessageSize` limits."""
_ATTEMPTS = 2
RESTART_EVERY_S = 1.0
"""Minimum interval between two starts of the process, in seconds."""
_STOP_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Given:
    """A job of the process, and the future of its caller."""

    job: Job
    outcome: asyncio.Future[tuple[Outcome, bytes | None]]
    attempts: int = 1


class ReadingProcess:
    """The reading process: start it, run jobs, restart it. Call all methods in one event loop.

    Args:
        root: The root's directory or URL.
        max_message_size_bytes: The broker's `maxMessageSize`; a slab can hold an entry of that size.
        slabs: Number of slabs of shared memory.
    """

    def __init__(self, root: RootPlace, max_message_size_bytes: int, slabs: int = SLABS) -> None:
        self._root = root
        self._max_message_size_bytes = max_message_size_bytes
        # Reads run one after the other, so slabs are large even if messages are small: fewer reads are needed.
        self.slab_entries_bytes = max(max_message_size_bytes, MAX_MESSAGE_BYTES) + _MARGIN_BYTES
        # Unlike a shared array, this memory is not filled with zeros, so unused slabs take none.
        self._memory = BufferWrapper(slabs * slab_bytes(self.slab_entries_bytes))
        self.slabs = views_of(self._memory, slabs)
        self._requests = CONTEXT.RawArray(c_int64, meter.CELLS)
        self._given: dict[int, _Given] = {}
        self._number = 0
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None
        self._started_s = 0.0
        self._restart: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    @property
    def requests(self) -> meter.Counts:
        """The numbers of requests to object stores by kind, including those of processes that have died."""
        return meter.counts_in(self._requests)

    def start(self) -> None:
        """Start the process. Jobs wait until it is ready."""
        self._started_s = time.monotonic()
        self._pipe, theirs = CONTEXT.Pipe()
        slabs = (self._memory, len(self.slabs))
        arguments = (logs.in_force(), self._root, self._max_message_size_bytes, *slabs, self._requests, theirs)
        self._process = CONTEXT.Process(target=_run, args=arguments, name="pulsarpy-reader", daemon=True)
        start_giving_way(self._process)
        theirs.close()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._receive_outcomes)

    async def stop(self) -> None:
        """Stop the process; running jobs fail."""
        if self._restart is not None:
            self._restart.cancel()
        process = self._detach()
        self._fail_all("The broker's reading process was stopped: ask another broker.")
        if process is not None:
            await asyncio.to_thread(_end, process)

    async def run_job(self, make: Callable[[int], Job]) -> tuple[Outcome, bytes | None]:
        """Run a job; return its outcome, and the entry's bytes if the outcome is `Large`, else None.

        Args:
            make: Creates the job from its number.

        Raises:
            PulsarpyError: the job failed.
            StorageError: the process died twice during the job, or was stopped.
        """
        self._number += 1
        given = _Given(make(self._number), asyncio.get_running_loop().create_future())
        self._given[self._number] = given
        self._send(given.job)
        return await given.outcome

    def _send(self, job: Job) -> None:
        if self._pipe is None:
            return  # `_start_next` sends it
        try:
            self._pipe.send(job)
        except OSError as error:  # the process is dead, which `_receive_outcomes` notices
            log.debug("A job waits for the next reading process: %s", error)

    def _receive_outcomes(self) -> None:
        """Receive the outcomes that are in the pipe, and pass them to the callers of `run_job`."""
        assert self._pipe is not None
        try:
            while self._pipe.poll():
                outcome: Outcome = self._pipe.recv()
                large = self._pipe.recv_bytes() if isinstance(outcome, Large) else None
                self._conclude(outcome, large)
        except (EOFError, OSError):
            self._restart_later()

    def _conclude(self, outcome: Outcome, large: bytes | None) -> None:
        given = self._given.pop(outcome.number)
        if given.outcome.done():
            return
        if isinstance(outcome, Failed):
            given.outcome.set_exception(outcome.error)
        else:
            given.outcome.set_result((outcome, large))

    def _restart_later(self) -> None:
        process = self._detach()
        assert process is not None
        process.kill()  # its end of the pipe is closed, so it can run no more jobs
        process.join()
        log.warning("The reading process ended with code %s and is restarted.", process.exitcode)
        process.close()
        later_s = max(self._started_s + RESTART_EVERY_S - time.monotonic(), 0.0)
        self._restart = asyncio.get_running_loop().call_later(later_s, self._start_next)

    def _start_next(self) -> None:
        """Start the next process, and send it the unfinished jobs of the process that ended."""
        self.start()
        for number, given in list(self._given.items()):
            given.attempts += 1
            if given.attempts > _ATTEMPTS:
                error = (
                    f"A read of {given.job.source.part.name} crashed the reading process {_ATTEMPTS} times: report "
                    "this as a bug."
                )
                self._conclude(Failed(number, StorageError(error)), None)
            else:
                self._send(given.job)

    def _detach(self) -> ForkServerProcess | None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None
        process, self._process = self._process, None
        return process

    def _fail_all(self, reason: str) -> None:
        for number in list(self._given):
            self._conclude(Failed(number, StorageError(reason)), None)


def views_of(memory: BufferWrapper, slabs: int) -> list[memoryview]:
    """Split the shared memory into slabs of equal size, and return a view of each."""
    view = memory.create_memoryview()
    size = len(view) // slabs
    return [view[number * size : (number + 1) * size] for number in range(slabs)]


def _run(
    log_settings: logs.Settings,
    root: RootPlace,
    max_message_size_bytes: int,
    memory: BufferWrapper,
    slabs: int,
    requests: Array[c_int64],
    jobs: Connection,
) -> None:
    meter.REQUESTS.move_to(requests)
    worker.run(log_settings, root, max_message_size_bytes, views_of(memory, slabs), jobs)


def _end(process: ForkServerProcess) -> None:
    process.join(_STOP_TIMEOUT_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
