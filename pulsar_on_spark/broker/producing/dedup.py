"""Deduplication of one topic's messages by (sender, sequence id): a stored message is not stored again.

Pulsar's rules (its `MessageDeduplication`). A **sender** is a producer name, or another cluster whose replicator sends
the positions that its entries have in that cluster (`Source`). Two sequence ids are kept for each sender: of the last
message that was **pushed** (given to the journal), and of the last message that was **persisted** (acknowledged by the
journal):

    above pushed                     NEW         store it
    at or below persisted            DUPLICATE   answer with the message id (-1, -1), do not store it
    between the two                  UNDECIDED   its outcome is not known yet: an error that makes the client try again

The chunks of a message share its sequence id, so only the last chunk is recorded; earlier ones are only checked. One
rule is stricter than Pulsar's: a batch that begins at or below `persisted` and ends above it is OVERLAPPING. Its first
messages are stored and its last messages are not. Pulsar drops the whole batch; here the producer gets an error.
(Clients that retry repeat the same batches, and the Java client splits a batch at the boundary. An application that
restarts may form other batches.) If a client does not send the sequence id of a batch's last message, `sequence_ids.py`
finds it; Pulsar uses the id of the first message.

The sequence id of an entry from a source is its position there as one number (`position_number`), so ledger and entry
always belong together. Pulsar keeps ledger and entry as two numbers under the replicator's name, and forgets them when
a topic is reloaded. Here each stored entry contains its source, so the replay restores the sequence id.

After a crash, the state is restored from a **snapshot** and a replay of the entries after it. A snapshot names a
position and includes each message before that position; it may be any number of entries old. No IO, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import Position

NO_SEQUENCE_ID: Final = -1
"""The id that a producer without stored messages gets: its client continues with the next one, 0."""
_ENTRY_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Source:
    """Another cluster, as the sender of the entries that its replicator sends.

    Attributes:
        cluster: The cluster's name.
    """

    cluster: str


Sender = str | Source
"""The key of deduplication: a producer's name, or another cluster whose replicator sends entries."""


def position_number(ledger: int, entry: int) -> int:
    """Return the sequence id of an entry from its position in the source; it grows as (ledger, entry) grows."""
    return ledger << _ENTRY_BITS | entry


def position_of(number: int) -> tuple[int, int]:
    """Return the ledger and entry from which `position_number` made the number."""
    return number >> _ENTRY_BITS, number & ((1 << _ENTRY_BITS) - 1)


class Verdict(Enum):
    """The decision on a message, a batch or a chunk; see the module."""

    NEW = auto()
    DUPLICATE = auto()
    UNDECIDED = auto()
    OVERLAPPING = auto()


@dataclass(frozen=True, slots=True)
class DedupLimits:
    """Bounds of a topic's deduplication; Pulsar's defaults.

    Attributes:
        max_producers: Maximum number of disconnected senders that are remembered. Above it, those that disconnected
            first are forgotten, producer names before sources. (Pulsar leaves arbitrary ones out of its snapshots.)
            `brokerDeduplicationMaxNumberOfProducers`.
        inactivity_ms: Time after which the name of a disconnected producer is forgotten; a source is not.
            `brokerDeduplicationProducerInactivityTimeoutMinutes`.
        snapshot_entries: Number of entries after which a snapshot is due. `brokerDeduplicationEntriesInterval`.
        snapshot_interval_ms: Time after which a snapshot is due if there was an entry; 0 for no time limit. A topic may
            have its own (`Deduplication.save_every`). `brokerDeduplicationSnapshotIntervalSeconds`.
        snapshot_pause_ms: Shortest time between two snapshots, because each is a commit. A longer pause means a longer
            replay.
    """

    max_producers: int = 10_000
    inactivity_ms: int = 360 * 60_000
    snapshot_entries: int = 1_000
    snapshot_interval_ms: int = 120_000
    snapshot_pause_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.max_producers < 1:
            raise InvalidArgumentError(
                "Deduplication must remember at least one producer: raise broker_deduplication_max_number_of_producers."
            )


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """The last persisted sequence id of each sender.

    Attributes:
        position: The next entry to replay: the snapshot covers all entries before it, and maybe some after it.
        sequence_ids: The last persisted sequence id of each sender.
    """

    position: Position
    sequence_ids: Mapping[Sender, int] = field(default_factory=dict)


class Deduplication:
    """The deduplication state of a topic's senders. A single owner calls it from one thread.

        restore     Deduplication(snapshot), then `replay` each entry from its position on, before anything is published
        publish     check -> NEW -> the journal accepts it -> pushed -> the journal acknowledges it -> persisted
        snapshot    if `is_snapshot_due`: `snapshot`, `snapshot_begun`, store it

    The journal acknowledges entries in order. If the journal ends, discard this object.

    Args:
        snapshot: The newest stored snapshot.
        now_ms: The current time of the caller's monotonic clock, in milliseconds.
        limits: Bounds of the state; None for Pulsar's defaults.
    """

    def __init__(self, snapshot: DedupSnapshot, now_ms: int, limits: DedupLimits | None = None) -> None:
        self._limits = limits or DedupLimits()
        self._position = snapshot.position
        self._persisted: dict[Sender, int] = dict(snapshot.sequence_ids)
        self._pushed: dict[Sender, int] = {}
        self._away: dict[Sender, int] = dict.fromkeys(self._persisted, now_ms)
        """Disconnected senders and the times of their disconnection, the earliest first."""
        self._connected: dict[Sender, int] = {}
        self._entries = 0
        self._snapshot_ms = now_ms
        self._snapshot_interval_ms = self._limits.snapshot_interval_ms
        self._restored_ms = now_ms

    # -- publishing ----------------------------------------------------------------------------------------------------

    def check(self, sender: Sender, first: int, last: int) -> Verdict:
        """Decide if a message must be stored; the state does not change.

        Args:
            sender: The name of the message's producer, or its source.
            first: The sequence id of the message, or of a batch's first message.
            last: The sequence id of the message, or of a batch's last message.
        """
        persisted = self._persisted.get(sender, NO_SEQUENCE_ID)
        if first > self._pushed.get(sender, persisted):
            return Verdict.NEW
        if last <= persisted:
            return Verdict.DUPLICATE
        return Verdict.UNDECIDED if sender in self._pushed else Verdict.OVERLAPPING

    def note_pushed(self, sender: Sender, last: int) -> None:
        """Record that the journal accepted a message, `last` as in `check`; of a chunked message, the last chunk."""
        self._pushed[sender] = last

    def note_persisted(self, sender: Sender, last: int, following: Position) -> None:
        """Record that a pushed message is stored.

        Args:
            sender: The name of the message's producer, or its source.
            last: The sequence id that was given to `note_pushed`.
            following: The position after the message's entry.
        """
        self._record(sender, last)
        if self._pushed.get(sender) == last:
            del self._pushed[sender]
        self.note_passed(following)

    def note_passed(self, following: Position) -> None:
        """Record a stored entry without a sequence id to remember: a chunk that is not the last one, or a marker.

        Args:
            following: The position after the entry.
        """
        self._position = max(self._position, following)
        self._entries += 1

    def replay(self, sender: Sender, last: int, following: Position) -> None:
        """Apply a stored entry from the snapshot's position on, in any order; of a chunked message, the last chunk.

        Args:
            sender: The name of the entry's producer, or its source.
            last: The sequence id of the entry's last message.
            following: The position after the entry.
        """
        self._record(sender, last)
        self.note_passed(following)

    def last_sequence_id(self, producer: str) -> int:
        """Return the last persisted sequence id of a producer's name; NO_SEQUENCE_ID if none is remembered."""
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
        """Record that a producer of this name is connected: its sequence id is not forgotten until it disconnects."""
        self._connected[producer] = self._connected.get(producer, 0) + 1
        self._away.pop(producer, None)

    def producer_left(self, producer: str, now_ms: int) -> None:
        """Record that a producer of this name is disconnected; the name counts as connected if another one has it."""
        left = self._connected.pop(producer) - 1
        if left:
            self._connected[producer] = left
        elif producer in self._persisted or producer in self._pushed:
            self._away[producer] = now_ms
            self._forget_surplus()

    def note_relayed(self, sender: Sender, now_ms: int) -> None:
        """Record that a replicator sent an entry. If its sender is not connected, it counts as inactive from now on."""
        if self._away.pop(sender, None) is not None:
            self._away[sender] = now_ms

    def forget_inactive(self, now_ms: int) -> None:
        """Forget names whose producers have been disconnected for too long; call it from time to time.

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
        """Return the sender of a kind that has been disconnected the longest; None if there is none.

        Senders with messages in flight are skipped: if they were forgotten, these messages could be stored twice.
        """
        return next((sender for sender in self._away if isinstance(sender, kind) and sender not in self._pushed), None)

    def _forget(self, sender: Sender) -> None:
        del self._away[sender]
        self._persisted.pop(sender, None)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def save_every(self, interval_ms: int) -> None:
        """Set the time between snapshots in milliseconds; 0 for no time limit."""
        self._snapshot_interval_ms = interval_ms

    def is_snapshot_due(self, now_ms: int) -> bool:
        """Return True if a snapshot is due by the entries or the time since the last one; see `DedupLimits`."""
        waited = now_ms - self._snapshot_ms
        if not self._entries or waited < self._limits.snapshot_pause_ms:
            return False
        by_time = 0 < self._snapshot_interval_ms <= waited
        return by_time or self._entries >= self._limits.snapshot_entries

    def snapshot(self) -> DedupSnapshot:
        """Return a snapshot of the persisted ids only, because entries in flight may never be stored."""
        return DedupSnapshot(self._position, dict(self._persisted))

    def snapshot_begun(self, now_ms: int) -> None:
        """Record that a snapshot was taken, and start the next interval. If it is not stored, a replay is longer."""
        self._entries = 0
        self._snapshot_ms = now_ms
