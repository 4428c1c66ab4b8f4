"""Leases: small files or objects of a root that show each consumer of a subscription which other consumers are alive.

Each consumer renews its own lease from a thread, because a micro-batch may take an hour. Clocks of two machines are
never compared: an observer polls the leases, and measures with its own monotonic clock. A lease has expired if its
content did not change for the lease's duration, if it is marked as released, or if it is gone (in a folder, a consumer
removes its lease when it ends). A lease decides only how soon a takeover happens; epochs make the takeover safe even if
the old consumer was merely suspended (`subscription.ownership`). Leases are therefore not synced: after a power cut no
consumer is alive.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Final

from pulsar_on_spark.model.errors import ConsumerBusyError, FormatVersionError, StorageError
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.storage.leases.contract import LeaseStore, lease_name

FORMAT_VERSION: Final = 1
DEFAULT_DURATION_S: Final = 10.0
MAX_CONSUMERS: Final = 1_000
"""Maximum number of live consumers of one subscription."""
LIVE_PERIODS: Final = 3
"""Number of durations, by the wall clock, after which an unrenewed lease does not count for `MAX_CONSUMERS`."""
_START_ATTEMPTS: Final = 5
"""Attempts to acquire a lease while other processes of the same consumer do so, too."""

_KEPT_RENEWALS: Final = 3
"""Number of a lease's last renewals whose times are kept beside the newest: they take a whole duration."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """Content of a lease.

    Attributes:
        consumer: The consumer id.
        token: Id of the process that wrote the lease. If two processes run as one consumer, the later owns the lease.
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

    def encode(self) -> bytes:
        """Return the stored form of the lease: JSON."""
        return json.dumps({"v": FORMAT_VERSION, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def parse(cls, content: bytes, where: str) -> Lease | None:
        """Decode a stored lease; None if the content is not a lease. `where` is its name in errors.

        Raises:
            FormatVersionError: a newer version of this project wrote it.
        """
        try:
            fields = json.loads(content)
            if fields["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"The lease {where} has version {fields['v']}, this pulsar_on_spark reads up to {FORMAT_VERSION}: "
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


def with_renewal(renewals_s: tuple[float, ...], now_s: float) -> tuple[float, ...]:
    """Return the times of the last renewals, in seconds, and that of a new one."""
    return (*renewals_s[-_KEPT_RENEWALS:], now_s)


def longest_pause_s(renewals_s: Sequence[float], since_s: float, now_s: float) -> float:
    """Return the longest time, in seconds, without a known renewal that has ended after `since_s`, or not yet.

    Args:
        renewals_s: The times of the last renewals, ascending.
        since_s: A time; if it is before the first of these renewals, there was none in between as far as is known.
        now_s: The current time.
    """
    moments_s = (min(since_s, renewals_s[0]), *renewals_s, now_s)
    return max(late_s - early_s for early_s, late_s in pairwise(moments_s) if late_s >= since_s)


class LeaseKeeper:
    """Keeper of one consumer's lease: its daemon thread renews the lease every third of the duration until `stop`.

    A renewal that fails is counted in `failures`, logged, and tried again a third of the duration later.

    Args:
        store: The leases of the subscription's consumers, or of brokers.
        consumer: The lease's consumer.
        duration_s: Seconds for which observers wait for the next renewal.
        may_renew: Called in the thread before each renewal; while it returns False, the lease is not renewed.

    Attributes:
        failures: Number of renewals that failed.
        last_error: The cause of the last failure; None if no renewal has failed.
        superseded: True if another process of the same consumer owns the lease now; this keeper no longer renews it.
        renewals_s: Times of the last few renewals, on the monotonic clock.
    """

    def __init__(
        self,
        store: LeaseStore,
        consumer: str,
        duration_s: float = DEFAULT_DURATION_S,
        may_renew: Callable[[], bool] = lambda: True,
    ) -> None:
        self.failures = 0
        self.last_error: str | None = None
        self.superseded = False
        self.renewals_s: tuple[float, ...] = (time.monotonic(),)
        self._store = store
        self._name = f"of {consumer} in {store.place}"
        self._lease = Lease(consumer, uuid.uuid4().hex, (), 0, duration_s)
        self._may_renew = may_renew
        self._lock = threading.RLock()  # a signal handler may call stop() during hold()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, topics: Iterable[TopicId]) -> None:
        """Acquire the lease, even from an earlier process of this consumer, and renew it from now on.

        Raises:
            StorageError: the lease cannot be written.
            ConsumerBusyError: the subscription has `MAX_CONSUMERS` live consumers.
        """
        self._store.prepare(time.time())
        others_alive = self._count_other_live(time.time())
        if others_alive >= MAX_CONSUMERS:
            raise ConsumerBusyError(
                f"{self._store.place} holds {others_alive} live leases already, and {MAX_CONSUMERS} are allowed: stop "
                "some of the consumers."
            )
        self._acquire(replace(self._lease, topics=tuple(topics), counter=1))
        self._thread = threading.Thread(target=self._run, name="pulsarpy-lease", daemon=True)
        self._thread.start()

    @property
    def topics(self) -> tuple[TopicId, ...]:
        """The ids of the topics in the lease as it was last written."""
        return self._lease.topics

    def hold(self, topics: Iterable[TopicId]) -> bool:
        """Write these topics to the lease immediately, before the consumer acquires a slot of a further topic.

        Returns:
            True if the lease was written; False if not: other consumers do not see this one on the further topics, so
            it must not acquire their slots, and must try again.
        """
        wanted = tuple(topics)
        return self._lease.topics == wanted or self._renew(wanted)

    def renew(self) -> bool:
        """Renew the lease once, as the thread does.

        Returns:
            True if this process owns the lease and has written it.
        """
        return self._renew(None)

    def stop(self, *, keep: bool = False) -> None:
        """Stop renewing, and release the lease. A second call does nothing.

        Args:
            keep: True to keep the lease, marked as released: its age then shows the last use.
        """
        if self._thread is None or self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(timeout=self._lease.duration_s)
        with self._lock:
            try:
                if self._is_mine():
                    # If another process of this consumer interferes, its next renewal writes the lease again.
                    released = replace(self._lease, counter=self._lease.counter + 1, released=True)
                    if keep:
                        self._write(released)
                    else:
                        self._store.remove(released.consumer, released.token, released.encode())
                self._store.discard_unfinished(self._lease.consumer, self._lease.token)
            except (StorageError, FormatVersionError) as error:
                _log.warning("The lease %s could not be released, it runs out by itself: %s", self._name, error)

    def _run(self) -> None:
        while not self.superseded and not self._stopping.wait(self._lease.duration_s / 3):
            if self._may_renew():
                self.renew()

    def _renew(self, topics: tuple[TopicId, ...] | None) -> bool:
        """Rewrite the lease with these topics (None for its current ones). Return True if it was written."""
        with self._lock:
            if self._stopping.is_set():
                return False
            try:
                if not self._is_mine():
                    return False
                named = self._lease.topics if topics is None else topics
                # False: another process of this consumer was faster, which the next renewal finds out.
                return self._write(replace(self._lease, topics=named, counter=self._lease.counter + 1))
            except (StorageError, FormatVersionError) as error:
                self.failures += 1
                self.last_error = str(error)
                _log.warning("The lease %s could not be renewed: %s", self._name, error)
                return False

    def _is_mine(self) -> bool:
        """Return True unless another process of this consumer wrote the lease, which makes this keeper `superseded`."""
        if not self.superseded:
            content = self._store.read(self._lease.consumer)
            stored = None if content is None else Lease.parse(content, self._name)
            if stored is not None and stored.token != self._lease.token:
                self.superseded = True
                _log.warning("The lease %s was taken by another process of this consumer.", self._name)
        return not self.superseded

    def _acquire(self, lease: Lease) -> None:
        for _ in range(_START_ATTEMPTS):
            self._store.read(lease.consumer)
            if self._write(lease):
                return
        raise StorageError(
            f"The lease {self._name} was written by another process during each of {_START_ATTEMPTS} attempts to "
            "acquire it: give each consumer a name of its own."
        )

    def _write(self, lease: Lease) -> bool:
        if not self._store.write(lease.consumer, lease.token, lease.encode()):
            return False
        self._lease = lease
        self.renewals_s = with_renewal(self.renewals_s, time.monotonic())
        return True

    def _count_other_live(self, now_s: float) -> int:
        """Count the other consumers that seem alive: not released, and renewed recently by the wall clock."""
        own = lease_name(self._lease.consumer)
        live = 0
        for stored in self._store.read_all():
            lease = Lease.parse(stored.content, self._store.place) if stored.name != own else None
            if lease is not None and not lease.released:
                live += abs(now_s - stored.written_s) <= LIVE_PERIODS * lease.duration_s
        return live


@dataclass(slots=True)
class _Observed:
    """A lease's content, and the times, on the observer's clock, when it was first seen and when it last changed.

    `lease` is the decoded content, None if it is not a lease. `written_s` is the time of its last write by the wall
    clock.
    """

    content: bytes
    lease: Lease | None
    written_s: float
    first_s: float
    changed_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.changed_s = self.first_s

    @property
    def duration_s(self) -> float:
        """The lease's duration in seconds; the default duration if the content is not a lease."""
        return self.lease.duration_s if self.lease is not None else DEFAULT_DURATION_S

    def forgive(self, out_of_reach_s: float, now_s: float) -> None:
        """Restart the observation if leases could not be read for half of this lease's duration.

        While the store cannot be reached, the holder cannot renew its lease either.
        """
        if out_of_reach_s >= self.duration_s / 2:
            self.first_s = self.changed_s = now_s

    def lease_state(self, now_s: float) -> LeaseState:
        """Return the state of the consumer's lease at `now_s`."""
        duration_s = self.duration_s
        if (self.lease is not None and self.lease.released) or now_s - self.changed_s >= duration_s:
            return LeaseState.EXPIRED
        return LeaseState.ALIVE if now_s - self.first_s >= duration_s else LeaseState.UNKNOWN


class LeaseWatcher:
    """Observer of the leases of one subscription, on its own monotonic clock.

    Args:
        store: The leases of the subscription's consumers, or of brokers.
        clock: Returns monotonic seconds; tests pass their own.
    """

    def __init__(self, store: LeaseStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[str, _Observed] = {}
        self._unread_since_s: float | None = None
        """Time of the first failed read since the last successful one; None if the latest read succeeded."""

    def observe_leases(self) -> None:
        """Read the leases once. Call this often, and before each `lease_states`.

        Raises:
            FormatVersionError: a newer version of this project wrote a lease.
            StorageError: the leases cannot be read.
        """
        began_s = self._clock()
        self._unread_since_s = self._unread_since_s or began_s
        stored = {lease.name: lease for lease in self._store.read_all()}
        now_s = self._clock()
        out_of_reach_s, self._unread_since_s = now_s - self._unread_since_s, None
        self._seen = {name: observed for name, observed in self._seen.items() if name in stored}
        for known in self._seen.values():
            known.forgive(out_of_reach_s, now_s)
        for name, (_, content, written_s) in stored.items():
            observed = self._seen.get(name)
            if observed is None:
                self._seen[name] = _Observed(content, self._parsed(content, name), written_s, now_s)
            elif observed.content != content:
                observed.content, observed.lease = content, self._parsed(content, name)
                observed.written_s, observed.changed_s = written_s, now_s

    def lease_states(self, topic_id: TopicId) -> dict[str, LeaseState]:
        """Return the state, by consumer, of the leases that name the topic; a consumer without a lease is absent."""
        now_s = self._clock()
        return {
            observed.lease.consumer: observed.lease_state(now_s)
            for observed in self._seen.values()
            if observed.lease is not None and topic_id in observed.lease.topics
        }

    def lease_state(self, consumer: str) -> LeaseState:
        """Return the state of one consumer's lease, whatever its topics; EXPIRED without a lease."""
        observed = self._seen.get(lease_name(consumer))
        return LeaseState.EXPIRED if observed is None else observed.lease_state(self._clock())

    def is_late(self, consumer: str) -> bool:
        """Return True if a lease has not changed for half of its duration; a renewal is due each third of it."""
        observed = self._seen.get(lease_name(consumer))
        return observed is not None and self._clock() - observed.changed_s >= observed.duration_s / 2

    def was_renewed(self, consumer: str) -> bool:
        """Return True if a consumer's lease changed while this observer watched, which shows a live consumer."""
        observed = self._seen.get(lease_name(consumer))
        return observed is not None and observed.changed_s > observed.first_s

    def has_lease(self, consumer: str) -> bool:
        """Return True if the consumer had a lease at the last poll."""
        return lease_name(consumer) in self._seen

    def looks_stale(self, consumer: str, now_s: float) -> bool:
        """Return True if the consumer has no lease, or its lease is older than its duration by the wall clock.

        Use this only as a hint, because the clocks of two machines may differ. `now_s` is in seconds since 1970.
        """
        observed = self._seen.get(lease_name(consumer))
        if observed is None:
            return True
        duration_s = observed.lease.duration_s if observed.lease is not None else DEFAULT_DURATION_S
        return now_s - observed.written_s > duration_s

    def _parsed(self, content: bytes, name: str) -> Lease | None:
        """Decode a stored lease; None if the content is not a lease."""
        return Lease.parse(content, f"{name} in {self._store.place}")
