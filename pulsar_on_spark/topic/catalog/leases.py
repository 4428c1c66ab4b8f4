"""Leases: small files under `<root>/leases` that show consumers of a subscription which others are alive.

Each consumer renews its own file by write and rename, from a thread, because a micro-batch may take an hour. Clocks of
two machines are never compared: an observer polls the files, and a lease has expired if its content did not change for
the lease's duration on the observer's own monotonic clock, if its file is gone (a consumer removes it when it ends), or
if the lease is marked as released. A lease decides only how soon a takeover happens; epochs make it safe even if the
old consumer was merely suspended (`subscription.ownership`). Leases are therefore not synced: after a power cut no
consumer is alive.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import ConsumerBusyError, FormatVersionError, StorageError
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.storage.lease_files import LeaseFiles, age_s, lease_folder

FORMAT_VERSION: Final = 1
DEFAULT_DURATION_S: Final = 10.0
MAX_CONSUMERS: Final = 1_000
"""Live consumers of one subscription; a further one is refused."""
LIVE_PERIODS: Final = 3
"""Number of durations after which, by the wall clock, an unrenewed lease is a dead consumer's; for that limit alone."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """Content of a lease file.

    Attributes:
        consumer: The consumer id.
        token: Id of the writing process, new for each one: of two processes of one consumer the later owns the file.
        topics: Ids of the topics that the consumer reads; it does not count as a consumer of other topics.
        counter: Number that grows with each renewal.
        duration_s: Seconds for which observers wait for the next renewal before they take over.
        released: True if the consumer has ended and released its lease.
    """

    consumer: str
    token: str
    topics: tuple[TopicId, ...]
    counter: int
    duration_s: float
    released: bool = False

    def text(self) -> str:
        """The file's JSON text."""
        return json.dumps({"v": FORMAT_VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def parse(cls, content: bytes, where: Path) -> Lease | None:
        """Read a lease file's content; None if it is no lease.

        Raises:
            FormatVersionError: a newer version of this project wrote it.
        """
        try:
            fields = json.loads(content)
            if fields["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"Lease file {where} has version {fields['v']}, this pulsar_on_spark reads up to {FORMAT_VERSION}: "
                    "upgrade it."
                )
            lease = cls(
                consumer=str(fields["consumer"]),
                token=str(fields["token"]),
                topics=tuple(TopicId(str(topic)) for topic in fields["topics"]),
                counter=int(fields["counter"]),
                duration_s=float(fields["duration_s"]),
                released=bool(fields["released"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        return lease if math.isfinite(lease.duration_s) and lease.duration_s > 0 else None


def lease_directory(root: Path, subscription: str) -> Path:
    """Return the directory of a subscription's leases, which the consumers of all its topics share."""
    return lease_folder(root, subscription)


def broker_lease_directory(root: Path) -> Path:
    """Return the directory of brokers' leases, whose consumers are incarnation ids; no subscription shares it."""
    return root / "leases" / "brokers"


class LeaseKeeper:
    """Keeper of one consumer's lease: its daemon thread renews the lease every third of the duration until `stop`.

    A renewal that fails is counted in `failures`, logged, and tried again a third of the duration later.

    Args:
        directory: `lease_directory` of the subscription, or `broker_lease_directory`.
        consumer: The lease's consumer.
        duration_s: Seconds for which observers wait for the next renewal.
        may_renew: Called in the thread before each renewal; while it returns False, the lease is not renewed.

    Attributes:
        failures: Number of renewals that failed.
        last_error: The cause of the last failure, or None.
        superseded: True if another process of the same consumer owns the lease now; this keeper no longer renews it.
    """

    def __init__(
        self,
        directory: Path,
        consumer: str,
        duration_s: float = DEFAULT_DURATION_S,
        may_renew: Callable[[], bool] = lambda: True,
    ) -> None:
        self.failures = 0
        self.last_error: str | None = None
        self.superseded = False
        self._files = LeaseFiles(directory)
        self._path = self._files.path(consumer)
        self._lease = Lease(consumer, uuid.uuid4().hex, (), 0, duration_s)
        self._may_renew = may_renew
        self._lock = threading.RLock()  # a signal handler may call stop() during hold()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, topics: Iterable[TopicId]) -> None:
        """Acquire the lease, also from an earlier process of this consumer, and renew it from now on.

        Raises:
            StorageError: the lease file cannot be written.
            ConsumerBusyError: the subscription has `MAX_CONSUMERS` live consumers.
        """
        try:
            self._files.prepare(time.time())
            others_alive = self._count_other_live(time.time())
            if others_alive >= MAX_CONSUMERS:
                raise ConsumerBusyError(
                    f"{self._files.folder} holds {others_alive} live leases already: stop some of the consumers."
                )
            self._write(replace(self._lease, topics=tuple(topics), counter=1))
        except OSError as error:
            raise StorageError(
                f"Lease file {self._path} cannot be written ({error}): make the root writable."
            ) from error
        self._thread = threading.Thread(target=self._run, name="pulsarpy-lease", daemon=True)
        self._thread.start()

    @property
    def topics(self) -> tuple[TopicId, ...]:
        """The topics in the lease file's last version."""
        return self._lease.topics

    def hold(self, topics: Iterable[TopicId]) -> bool:
        """Write these topics to the lease immediately, before the consumer acquires a slot of a further topic.

        Returns:
            False if the write failed: others do not see this consumer on the further topics, so it must not acquire
            slots there, and must try again.
        """
        wanted = tuple(topics)
        return self._lease.topics == wanted or self._renew(wanted)

    def renew(self) -> bool:
        """Renew the lease once, as the thread does.

        Returns:
            True if this process owns the lease and the file was written.
        """
        return self._renew(None)

    def stop(self, *, keep_file: bool = False) -> None:
        """Stop renewing, and release the lease. A second call does nothing.

        Args:
            keep_file: True to keep the file, marked as released: its age then shows the last use.
        """
        if self._thread is None or self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(timeout=self._lease.duration_s)
        with self._lock:
            try:
                if self._is_mine():
                    # If another process of this consumer interferes, its next renewal creates the file again.
                    if keep_file:
                        self._write(replace(self._lease, counter=self._lease.counter + 1, released=True))
                    else:
                        self._files.remove(self._lease.consumer)
                self._files.discard_unfinished(self._lease.consumer, self._lease.token)
            except (OSError, FormatVersionError) as error:
                _log.warning("Lease %s could not be given up, it runs out by itself: %s", self._path, error)

    def _run(self) -> None:
        while not self.superseded and not self._stopping.wait(self._lease.duration_s / 3):
            if self._may_renew():
                self.renew()

    def _renew(self, topics: tuple[TopicId, ...] | None) -> bool:
        """Rewrite the file, with these topics unless they are None."""
        with self._lock:
            if self._stopping.is_set():
                return False
            try:
                if not self._is_mine():
                    return False
                named = self._lease.topics if topics is None else topics
                self._write(replace(self._lease, topics=named, counter=self._lease.counter + 1))
            except (OSError, FormatVersionError) as error:
                self.failures += 1
                self.last_error = str(error)
                _log.warning("Lease %s could not be renewed: %s", self._path, error)
                return False
            return True

    def _is_mine(self) -> bool:
        """True unless another process of this consumer wrote the file; this process then never writes it again."""
        if not self.superseded:
            content = self._files.read(self._lease.consumer)
            stored = None if content is None else Lease.parse(content, self._path)
            if stored is not None and stored.token != self._lease.token:
                self.superseded = True
                _log.warning("Lease %s was taken by another process of consumer %s.", self._path, stored.consumer)
        return not self.superseded

    def _write(self, lease: Lease) -> None:
        self._files.write(lease.consumer, lease.token, lease.text())
        self._lease = lease

    def _count_other_live(self, now_s: float) -> int:
        """Count the other consumers that seem alive: not released, and renewed recently by the wall clock."""
        live = 0
        for path, content in self._files.read_all():
            lease = Lease.parse(content, path) if path != self._path else None
            age = age_s(path, now_s)
            if lease is not None and age is not None and not lease.released:
                live += abs(age) <= LIVE_PERIODS * lease.duration_s
        return live


@dataclass(slots=True)
class _Observed:
    """A lease file: its content, and the times on the observer's clock of its first sight and its last change."""

    content: bytes
    lease: Lease | None
    first_s: float
    changed_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.changed_s = self.first_s

    def lease_state(self, now_s: float) -> LeaseState:
        """Return the state of the consumer's lease at `now_s`."""
        duration_s = self.lease.duration_s if self.lease is not None else DEFAULT_DURATION_S
        if (self.lease is not None and self.lease.released) or now_s - self.changed_s >= duration_s:
            return LeaseState.EXPIRED
        return LeaseState.ALIVE if now_s - self.first_s >= duration_s else LeaseState.UNKNOWN


class LeaseWatcher:
    """Observer of the leases of one subscription, on its own monotonic clock.

    Args:
        directory: `lease_directory` of the subscription.
        clock: Returns monotonic seconds; tests pass their own.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = LeaseFiles(directory)
        self._clock = clock
        self._seen: dict[Path, _Observed] = {}

    def observe_leases(self) -> None:
        """Read the directory once: call it often, and before each `lease_states`.

        Raises:
            FormatVersionError: a newer version of this project wrote a lease.
            StorageError: the directory or a file in it cannot be read.
        """
        try:
            contents = dict(self._files.read_all())
        except OSError as error:
            raise StorageError(
                f"Leases in {self._files.folder} cannot be read ({error}): make them readable."
            ) from error
        now_s = self._clock()
        self._seen = {path: observed for path, observed in self._seen.items() if path in contents}
        for path, content in contents.items():
            observed = self._seen.get(path)
            if observed is None:
                self._seen[path] = _Observed(content, Lease.parse(content, path), now_s)
            elif observed.content != content:
                observed.content, observed.lease, observed.changed_s = content, Lease.parse(content, path), now_s

    def lease_states(self, topic_id: TopicId) -> dict[str, LeaseState]:
        """Return the state, by consumer, of the leases that name the topic; a consumer without a file is absent."""
        now_s = self._clock()
        return {
            observed.lease.consumer: observed.lease_state(now_s)
            for observed in self._seen.values()
            if observed.lease is not None and topic_id in observed.lease.topics
        }

    def lease_state(self, consumer: str) -> LeaseState:
        """Return the state of one consumer's lease, whatever its topics; EXPIRED without a lease file."""
        observed = self._seen.get(self._files.path(consumer))
        return LeaseState.EXPIRED if observed is None else observed.lease_state(self._clock())

    def was_renewed(self, consumer: str) -> bool:
        """Return True if a consumer's lease changed while this observer watched: then the consumer was alive."""
        observed = self._seen.get(self._files.path(consumer))
        return observed is not None and observed.changed_s > observed.first_s

    def has_lease(self, consumer: str) -> bool:
        """Return True if the consumer had a lease at the last poll."""
        return self._files.path(consumer) in self._seen

    def looks_stale(self, consumer: str, now_s: float) -> bool:
        """Return True if a lease is older than its duration by the wall clock (`now_s`): a hint, never a decision."""
        path = self._files.path(consumer)
        observed = self._seen.get(path)
        age = age_s(path, now_s)
        return age is None or age > (
            observed.lease.duration_s if observed is not None and observed.lease is not None else DEFAULT_DURATION_S
        )
