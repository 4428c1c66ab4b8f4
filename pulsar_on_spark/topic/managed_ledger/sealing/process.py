"""The child process of a broker that seals and trims its journal, within a CPU budget. It ends with its parent.

    parent: SealingProcess.start() -> child: passes of `Sealer` and `Trimmer` -> gauges in shared memory -> parent

The child seals when enough bytes are unsealed, or when bytes have been unsealed for long enough (`SealingPolicy`). It
reports in shared memory how many bytes of the journal are unsealed, and that it is alive. If too many bytes are
unsealed, or if the child has not reported for 45 s, producers must wait (back-pressure), so that an unsealed journal
does not fill its disks.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Array, c_double, c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import parent_process

from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.arrow_start import start_arrow_without_pandas
from pulsar_on_spark.model.errors import JournalFencedError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.objects import meter
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.giving_way import CONTEXT, give_way, start_giving_way
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalLag
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import GRACE_S, Trimmer

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
"""Default interval at which the child checks if there is work, and if its parent still lives."""
_LAG_INTERVAL_S = 1.0
"""Interval of measurements of the unsealed bytes during a pass."""
_MAX_PAUSE_S = 1.0
_SILENT_S = 45.0
"""Seconds without a sign of life after which the child counts as stuck; a request to an object store may take 30 s."""
_STOP_TIMEOUT_S = 10.0
_UNKNOWN_FILES = 8
"""Number of files of unknown size that together count as the lag limit."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SealingPolicy:
    """The times and the speed of sealing.

    Attributes:
        backlog_bytes: Minimum unsealed bytes of the journal for a pass.
        ledger_bytes: Minimum unsealed bytes for a pass, per ledger in the last pass, because a pass writes a segment
            for each ledger. The sum over all ledgers is limited to a quarter of `lag_limit_bytes`.
        tail_bytes: Unsealed bytes from which on a pass also seals the file that is being written, up to the LAC.
        max_age_s: Age in seconds at which unsealed entries are sealed regardless of their size, including the tail.
        interval_s: Minimum seconds between the beginnings of two passes.
        look_interval_s: Seconds between two reads of the metadata and of the journal's size.
        trim_interval_s: Seconds between two trims; there is also a trim after each pass that sealed entries.
        cpu_share: Maximum share of one core that passes use.
        lag_limit_bytes: Unsealed bytes above which producers must wait.
        grace_s: Seconds for which journal files are kept after their trim.
    """

    backlog_bytes: int = 64 * _MIB
    ledger_bytes: int = _MIB // 16
    tail_bytes: int = 256 * _MIB
    max_age_s: float = 60.0
    interval_s: float = 1.0
    look_interval_s: float = LOOK_INTERVAL_S
    trim_interval_s: float = 10.0
    cpu_share: float = 1.0
    lag_limit_bytes: int = 4096 * _MIB
    grace_s: float = GRACE_S

    def lag_bytes(self, lag: JournalLag) -> int:
        """Return the unsealed bytes of a journal. A file of unknown size counts as 1/8 of `lag_limit_bytes`.

        So producers need not wait because of one unreachable file, but they must wait if there are many.
        """
        return lag.bytes + lag.unknown_files * (self.lag_limit_bytes // _UNKNOWN_FILES)


DEFAULT_POLICY = SealingPolicy()


class CpuBudget:
    """Limiter of this process to a share of one core, by pauses after work.

    Args:
        share: The maximum CPU seconds per second.
        cpu_s: Returns the CPU time of the process so far, in seconds.
        clock_s: Returns monotonic seconds.
        pause: Waits for a number of seconds.
    """

    def __init__(
        self,
        share: float,
        cpu_s: Callable[[], float] = time.process_time,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._cpu_s = cpu_s
        self._clock_s = clock_s
        self._pause = pause
        self._since = (cpu_s(), clock_s())

    def pace(self) -> None:
        """Pause until the CPU time since the last call is within the share, for at most a second."""
        spent_s, passed_s = self._cpu_s() - self._since[0], self._clock_s() - self._since[1]
        owed_s = spent_s / self._share - passed_s
        if owed_s > 0:
            self._pause(min(owed_s, _MAX_PAUSE_S))
        self._since = (self._cpu_s(), self._clock_s())


class SealingProcess:
    """The broker's view of its sealing process, to start it, stop it and read its gauges.

    Args:
        root: The root's folder or URL.
        incarnation: The open incarnation whose log is sealed.
        policy: The times and the speed of sealing.
    """

    def __init__(self, root: RootPlace, incarnation: IncarnationId, policy: SealingPolicy = DEFAULT_POLICY) -> None:
        self._root = root
        self._incarnation = incarnation
        self._policy = policy
        self._gauges = _Gauges(
            lag_bytes=CONTEXT.RawValue(c_int64, 0),
            deleted_before=CONTEXT.RawValue(c_int64, 0),
            alive_at_s=CONTEXT.RawValue(c_double, time.monotonic()),
            requests=CONTEXT.RawArray(c_int64, meter.CELLS),
        )
        self._process: ForkServerProcess | None = None
        self._stop: Connection | None = None

    def start(self) -> None:
        """Start the child, or replace a child that has died; do nothing if it runs."""
        if self.is_alive():
            return
        self._close()
        receiver, self._stop = CONTEXT.Pipe(duplex=False)
        arguments = (logs.in_force(), self._root, self._incarnation, self._policy, self._gauges, receiver)
        self._process = CONTEXT.Process(target=_run, args=arguments, name="pulsarpy-sealer", daemon=True)
        start_giving_way(self._process)
        receiver.close()

    def stop(self) -> None:
        """Request the child's end, and kill it if it still runs after 10 s, which does no harm."""
        if self._stop is not None:
            self._stop.close()
            self._stop = None
        if self._process is not None:
            self._process.join(_STOP_TIMEOUT_S)
        self._close()

    def is_alive(self) -> bool:
        """Return True if the child runs. It has ended if its incarnation was fenced, or after an unexpected error."""
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int | None:
        """The child's process id; None before the first start and after a stop."""
        return None if self._process is None else self._process.pid

    @property
    def lag_bytes(self) -> int:
        """The unsealed bytes of the journal, counting one copy of each file, at the child's last report."""
        return self._gauges.lag_bytes.value

    @property
    def deleted_before(self) -> FrameNumber:
        """The frame below which all journal files are deleted, for `Journal.forget_trimmed_frames`."""
        return self._gauges.deleted_before.value

    @property
    def requests(self) -> meter.Counts:
        """The number of requests to object stores by all children that were started here."""
        return meter.counts_in(self._gauges.requests)

    @property
    def lag_limit_bytes(self) -> int:
        """The value of `lag_bytes` above which producers must wait (see `SealingPolicy`)."""
        return self._policy.lag_limit_bytes

    @property
    def silent_s(self) -> float:
        """The seconds since the child last reported that it is alive.

        Before its first report, since this object was made.
        """
        return time.monotonic() - self._gauges.alive_at_s.value

    def is_over_lag_limit(self) -> bool:
        """Return True if producers must wait: too many bytes are unsealed, or the child has not reported for 45 s."""
        return self.lag_bytes > self.lag_limit_bytes or self.silent_s > _SILENT_S

    def _close(self) -> None:
        if self._stop is not None:
            self._stop.close()
            self._stop = None
        if self._process is not None:
            if self._process.is_alive():
                self._process.kill()
            self._process.join()
            self._process.close()
            self._process = None


@dataclass(frozen=True, slots=True)
class _Gauges:
    """The child's reports in memory that it shares with its parent. Times are on the system's monotonic clock.

    Only the child writes, one word at a time. There are no locks, because a killed child would never release a lock.
    """

    lag_bytes: c_int64
    deleted_before: c_int64
    alive_at_s: c_double
    requests: Array[c_int64]


class _StoppedError(Exception):
    """The parent has requested the child's end, or is dead."""


def _run(
    log_settings: logs.Settings,
    root: RootPlace,
    incarnation: IncarnationId,
    policy: SealingPolicy,
    gauges: _Gauges,
    stop: Connection,
) -> None:
    """Run the child process until the parent ends or requests its end, or the incarnation has ended."""
    give_way()
    gc.freeze()
    logs.configure(*log_settings)
    start_arrow_without_pandas()
    meter.REQUESTS.move_to(gauges.requests)
    try:
        _Worker(RootHandle.open(root), incarnation, policy, gauges, stop).run()
    except _StoppedError:
        pass
    except JournalFencedError:  # the broker has closed the journal, or reports itself that it was taken over
        log.info("Sealing of incarnation %s ends, because its journal is no longer open.", incarnation)


class _Worker:
    """The child's loop, which decides when to run a pass of the sealer or of the trimmer."""

    def __init__(
        self,
        root: RootHandle,
        incarnation: IncarnationId,
        policy: SealingPolicy,
        gauges: _Gauges,
        stop: Connection,
    ) -> None:
        self._policy = policy
        self._gauges = gauges
        self._stop = stop
        self._budget = CpuBudget(policy.cpu_share, pause=self._wait)
        self._sealer = Sealer(root, incarnation, is_live=True, pace=self._pace)
        self._trimmer = Trimmer(root, incarnation, self._sealer.cursors, grace_s=policy.grace_s)
        self._behind_since_s: float | None = None
        self._ledgers = 0
        self._noted_at_s = 0.0
        self._put_off: dict[str, type[Exception]] = {}

    def run(self) -> None:
        """Seal and trim until an error ends the loop.

        Raises:
            _StoppedError: the parent is dead, or has requested the end.
            JournalFencedError: the incarnation has ended.
        """
        sealed_at_s = trimmed_at_s = 0.0
        # Requests to a store without an answer are repeated for a minute. That is no hang: other copies are tried next.
        meter.REQUESTS.watch(self._note_life)
        while True:
            now_s = time.monotonic()
            has_sealed = False
            if now_s >= sealed_at_s + self._policy.interval_s:
                with self._putting_off("Sealing"):
                    has_sealed = self._seal(now_s)
                if has_sealed or "Sealing" in self._put_off:
                    sealed_at_s = now_s
            if has_sealed or now_s >= trimmed_at_s + self._policy.trim_interval_s:
                trimmed_at_s = now_s
                with self._putting_off("Trimming"):
                    self._trim()
            self._wait(self._policy.look_interval_s)

    @contextmanager
    def _putting_off(self, what: str) -> Iterator[None]:
        """Catch and log a failure of the block, so that the work is retried later.

        Repeated failures of one type are not logged.
        """
        try:
            yield
        except JournalFencedError:
            raise
        except (PulsarpyError, OSError) as error:
            if self._put_off.get(what) is not type(error):
                log.warning("%s is put off, and retried until it succeeds: %s", what, error)
            self._put_off[what] = type(error)
        else:
            if self._put_off.pop(what, None) is not None:
                log.warning("%s works again.", what)

    def _seal(self, now_s: float) -> bool:
        """Run a pass of the sealer if enough bytes are unsealed, or unsealed for too long.

        Return True if it read frames.
        """
        policy = self._policy
        lag_bytes = self._note_lag()
        if lag_bytes == 0:
            self._behind_since_s = None
            return False
        self._behind_since_s = since_s = self._behind_since_s or now_s
        is_old = now_s - since_s >= policy.max_age_s
        if lag_bytes < self._backlog_bytes() and not is_old:
            return False
        report = self._sealer.seal(tail=is_old or lag_bytes >= policy.tail_bytes)
        self._ledgers = report.ledgers or self._ledgers
        if is_old or report.journal_bytes:
            self._behind_since_s = None
        lag_bytes = self._note_lag()
        if report.journal_bytes:
            log.info(
                "Sealed %d entries of %d ledgers: %.0f MB of journal in %.1f s (%.0f MB/s) as %.0f MB; %.0f MB left.%s",
                *(report.entries, report.ledgers, report.journal_bytes / 1e6, report.seconds),
                *(report.journal_bytes / 1e6 / max(report.seconds, 1e-3), report.file_bytes / 1e6, lag_bytes / 1e6),
                " Another sealer was faster." if report.lost else "",
            )
        return report.journal_bytes > 0

    def _trim(self) -> None:
        report = self._trimmer.trim()
        self._gauges.deleted_before.value = max(self._gauges.deleted_before.value, report.deleted_before)
        if report.deleted_files:
            log.info("Deleted %d journal files; frames below %d are gone.", report.deleted_files, report.deleted_before)

    def _backlog_bytes(self) -> int:
        """Return the minimum unsealed bytes at which a pass begins, which grows with the ledgers of the last pass."""
        of_ledgers = min(self._ledgers * self._policy.ledger_bytes, self._policy.lag_limit_bytes // 4)
        return max(self._policy.backlog_bytes, of_ledgers)

    def _note_lag(self) -> int:
        lag_bytes = self._policy.lag_bytes(self._sealer.lag())
        self._gauges.lag_bytes.value = lag_bytes
        self._noted_at_s = time.monotonic()
        return lag_bytes

    def _pace(self) -> None:
        self._check()
        self._budget.pace()
        if time.monotonic() >= self._noted_at_s + _LAG_INTERVAL_S:
            self._note_lag()  # a pass may take long while producers continue

    def _wait(self, seconds: float) -> None:
        if self._stop.poll(seconds):  # the parent never sends anything: its end of the pipe was closed
            raise _StoppedError
        self._check()

    def _note_life(self) -> None:
        self._gauges.alive_at_s.value = time.monotonic()

    def _check(self) -> None:
        self._note_life()
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            raise _StoppedError
