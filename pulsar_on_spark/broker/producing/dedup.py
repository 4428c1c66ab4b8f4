"""Deduplication of one topic's messages by (sender, sequence id): a stored message is not stored again.

Pulsar's rules (its `MessageDeduplication`). A **sender** is a producer name, or another cluster whose replicator names
the source entry of each message (`Source`). Two sequence ids are kept for each sender, those of the last message that
was **pushed** (passed to the journal) and that was **persisted** (acknowledged by it):

    above pushed                     NEW         store it
    at or below persisted            DUPLICATE   answer with the message id (-1, -1), do not store it
    between the two                  UNDECIDED   its outcome is not known yet: an error that makes the client try again

Chunks of one message share its sequence id, so only the last one is recorded; earlier ones are checked all the same.
One rule is stricter than Pulsar's: a batch that begins at or below `persisted` and ends above it is OVERLAPPING. Its
first messages are stored, its last ones are not, and Pulsar drops both; here the producer gets an error. (A client that
sends again by itself has the same batches, and Java's ends one at the boundary; a restarted application cuts them
elsewhere.) And if a client does not name a batch's last message, Pulsar takes the first one for it.

The sequence id of a source's entry is its ledger and entry there as one number (`place_number`), so both are always
those of one entry. Pulsar keeps two numbers, for each replicator's name, and forgets them on a reload; here the entry
itself names its source, and the replay finds it.

After a crash, a **snapshot** and a replay of later entries restore the state. A snapshot names a position and covers
each message before it; it may be any number of entries old. No IO, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import Position

NO_SEQUENCE_ID: Final = -1
"""Sequence id for a producer without stored messages: its client begins with the next one, 0."""
_PLACE_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Source:
    """Another cluster, as the sender of entries that its replicator sends."""

    cluster: str


Sender = str | Source
"""A producer's name, or another cluster."""


def place_number(ledger: int, entry: int) -> int:
    """The sequence id of a source's entry: it grows as (ledger, entry) grows."""
    return ledger << _PLACE_BITS | entry


def place_of(number: int) -> tuple[int, int]:
    """The ledger and entry of which `place_number` made a number."""
    return number >> _PLACE_BITS, number & ((1 << _PLACE_BITS) - 1)


class Verdict(Enum):
    """The decision about a message (a batch, a chunk); see the module."""

    NEW = auto()
    DUPLICATE = auto()
    UNDECIDED = auto()
    OVERLAPPING = auto()


@dataclass(frozen=True, slots=True)
class DedupLimits:
    """Bounds of a topic's deduplication; Pulsar's defaults.

    Attributes:
        max_producers: Senders that are remembered while they are away. Beyond it those that are away for longest are
            forgotten, names before sources (Pulsar leaves any of them out of its snapshots).
            `brokerDeduplicationMaxNumberOfProducers`.
        inactivity_ms: Time after which the name of a disconnected producer is forgotten; a source is not.
            `brokerDeduplicationProducerInactivityTimeoutMinutes`.
        snapshot_entries: Number of entries after which a snapshot is due, `brokerDeduplicationEntriesInterval` ...
        snapshot_interval_ms: ... and after so long, if there was any entry; 0 for not by time. A topic may have its
            own (`Deduplication.save_every`). `brokerDeduplicationSnapshotIntervalSeconds`.
        snapshot_pause_ms: But never sooner than this after the last one: it is a commit. The cost is a longer replay.
    """

    max_producers: int = 10_000
    inactivity_ms: int = 360 * 60_000
    snapshot_entries: int = 1_000
    snapshot_interval_ms: int = 120_000
    snapshot_pause_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.max_producers < 1:
            raise InvalidArgumentError("Deduplication must remember at least one producer: raise its maximum.")


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """The last persisted sequence id of each sender, of all entries before `position`, the next to be replayed.

    It may cover entries at and after the position too, as long as they are stored.
    """

    position: Position
    sequence_ids: Mapping[Sender, int] = field(default_factory=dict)


class Deduplication:
    """The deduplication state of a topic's senders. One owner drives it, from one thread.

        restore     Deduplication(snapshot), then `replay` each entry from its position on, before anything is published
        publish     check -> NEW -> the journal takes it -> pushed -> the journal acknowledges it -> persisted
        snapshot    where `is_snapshot_due`: `snapshot`, `snapshot_begun`, store it

    The journal acknowledges in order and everything or, when it is lost, nothing more, and with it this object is.

    Args:
        snapshot: The newest stored one.
        now_ms: The caller's clock; any that only grows.
        limits: Its bounds.
    """

    def __init__(self, snapshot: DedupSnapshot, now_ms: int, limits: DedupLimits | None = None) -> None:
        self._limits = limits or DedupLimits()
        self._position = snapshot.position
        self._persisted: dict[Sender, int] = dict(snapshot.sequence_ids)
        self._pushed: dict[Sender, int] = {}
        self._away: dict[Sender, int] = dict.fromkeys(self._persisted, now_ms)
        """Senders that are not connected by name, and since when: the longest away first."""
        self._connected: dict[Sender, int] = {}
        self._entries = 0
        self._snapshot_ms = now_ms
        self._snapshot_interval_ms = self._limits.snapshot_interval_ms
        self._restored_ms = now_ms

    # -- publishing ----------------------------------------------------------------------------------------------------

    def check(self, sender: Sender, first: int, last: int) -> Verdict:
        """Decide if a message is to be stored.

        Args:
            sender: Its producer's name, or its source.
            first: Its sequence id; of a batch that of the first message.
            last: The same; of a batch that of the last message.
        """
        persisted = self._persisted.get(sender, NO_SEQUENCE_ID)
        if first > self._pushed.get(sender, persisted):
            return Verdict.NEW
        if last <= persisted:
            return Verdict.DUPLICATE
        return Verdict.UNDECIDED if sender in self._pushed else Verdict.OVERLAPPING

    def pushed(self, sender: Sender, last: int) -> None:
        """Note that the journal has taken a message; of chunks call it for the last one only."""
        self._pushed[sender] = last

    def persisted(self, sender: Sender, last: int, following: Position) -> None:
        """A message that was pushed is stored.

        Args:
            sender: Its producer's name, or its source.
            last: As given to `pushed`.
            following: The position after its entry.
        """
        self._record(sender, last)
        if self._pushed.get(sender) == last:
            del self._pushed[sender]
        self.passed(following)

    def passed(self, following: Position) -> None:
        """Note a stored entry without a sequence id to remember: a chunk that is not the last one, a marker."""
        self._position = max(self._position, following)
        self._entries += 1

    def replay(self, sender: Sender, last: int, following: Position) -> None:
        """A stored entry from the snapshot's position on, in any order; of chunks only the last one."""
        self._record(sender, last)
        self.passed(following)

    def last_sequence_id(self, producer: str) -> int:
        """Return the last persisted sequence id of a name, NO_SEQUENCE_ID if there is none, for PRODUCER_SUCCESS."""
        return self._persisted.get(producer, NO_SEQUENCE_ID)

    def _record(self, sender: Sender, last: int) -> None:
        known = self._persisted.get(sender)
        if known is None or last > known:
            self._persisted[sender] = last
        if known is None and sender not in self._connected:
            self._away[sender] = self._restored_ms
            self._forget_surplus()

    # -- producers -----------------------------------------------------------------------------------------------------

    def producer_connected(self, producer: str) -> None:
        """Note that a producer of this name is connected: it is not forgotten."""
        self._connected[producer] = self._connected.get(producer, 0) + 1
        self._away.pop(producer, None)

    def producer_left(self, producer: str, now_ms: int) -> None:
        """Note that a producer has left; with a successor under the same name, the name stays connected."""
        left = self._connected.pop(producer) - 1
        if left:
            self._connected[producer] = left
        elif producer in self._persisted or producer in self._pushed:
            self._away[producer] = now_ms
            self._forget_surplus()

    def relayed(self, sender: Sender, now_ms: int) -> None:
        """Note an entry that a replicator sent for a sender that is not connected: it counts as away from now."""
        if self._away.pop(sender, None) is not None:
            self._away[sender] = now_ms

    def forget_inactive(self, now_ms: int) -> None:
        """Forget the names whose producers were away for too long; call it now and then.

        A source is not forgotten: it may be cut off for longer, and then repeats all entries without a receipt.
        """
        while (oldest := self._longest_away(str)) and self._away[oldest] <= now_ms - self._limits.inactivity_ms:
            self._forget(oldest)

    def _forget_surplus(self) -> None:
        while len(self._away) > self._limits.max_producers:
            oldest = self._longest_away(str) or self._longest_away(Source)
            if oldest is None:
                return
            self._forget(oldest)

    def _longest_away(self, kind: type[Sender]) -> Sender | None:
        """Return the longest absent producer with nothing in flight: an unknown outcome could be stored twice."""
        return next((each for each in self._away if isinstance(each, kind) and each not in self._pushed), None)

    def _forget(self, sender: Sender) -> None:
        del self._away[sender]
        self._persisted.pop(sender, None)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def save_every(self, interval_ms: int) -> None:
        """Set the interval between snapshots; 0 for none."""
        self._snapshot_interval_ms = interval_ms

    def is_snapshot_due(self, now_ms: int) -> bool:
        """True if a snapshot is due."""
        waited = now_ms - self._snapshot_ms
        if not self._entries or waited < self._limits.snapshot_pause_ms:
            return False
        by_time = 0 < self._snapshot_interval_ms <= waited
        return by_time or self._entries >= self._limits.snapshot_entries

    def snapshot(self) -> DedupSnapshot:
        """Return the present state, of persisted entries only: entries in flight may never be stored."""
        return DedupSnapshot(self._position, dict(self._persisted))

    def snapshot_begun(self, now_ms: int) -> None:
        """Note that a snapshot is being stored: the next is due later. If it fails, a replay is longer."""
        self._entries = 0
        self._snapshot_ms = now_ms
