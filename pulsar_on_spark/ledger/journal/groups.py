"""Groups of entries or cursor records, each of which becomes a frame: they fill while earlier frames are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from pulsar_on_spark.ledger.journal.codec_encode import (
    EncodedFrame,
    EntryGroup,
    Payload,
    encode_cursor,
    encode_entries,
)
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.log import FrameKind, FrameNumber
from pulsar_on_spark.ledger.journal.object_protocol import DEFAULT_COMMITS, CommitPolicy
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.storage.probe import ROOM_BYTES

MIB = 1024 * 1024
_FRAME_OVERHEAD_BYTES = 512
_ENTRY_OVERHEAD_BYTES = 32
"""Approximate bytes that an entry adds to a frame beside its payload."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Bounds of a journal; the defaults suit a broker with a few disks.

    Attributes:
        group_bytes: A group of this size closes even if no path is free.
        group_entries: A group of this number of entries or records also closes.
        waiting_bytes: Limit of unacknowledged payloads, and of the backlog of any one path; producers wait above it
            (back-pressure).
        waiting_entries: Limit of unacknowledged entries and records.
        entry_bytes: The largest entry or record.
        frames_in_flight: Limit of frames that are sent and unacknowledged.
        roll_bytes: Size at which writing moves to the next journal file. It bounds the time that a recovery takes.
        slow_path_s: Time without progress after which a path is given up. A path is also given up if it was half of
            `waiting_bytes` behind for this time in total while the others were idle.
        idle_lac_s: Idle time after which the journal writes the last acknowledged frame's number for tail readers.
        metadata_wait_s: Time for which a journal tries to read the metadata. Then it ends if acknowledgements wait for
            a change of its record; if it only prepares its next file, it continues in its current file.
        object_commits: The rule for cutting objects, on paths on object stores.
    """

    group_bytes: int = 1 * MIB
    group_entries: int = 4096
    waiting_bytes: int = 64 * MIB
    waiting_entries: int = 200_000
    entry_bytes: int = 16 * MIB
    frames_in_flight: int = 64
    roll_bytes: int = ROOM_BYTES
    slow_path_s: float = 10.0
    idle_lac_s: float = 0.01
    metadata_wait_s: float = 30.0
    object_commits: CommitPolicy = DEFAULT_COMMITS


@dataclass(slots=True)
class EntriesGroup:
    """The entries of one future frame and the contexts given by their callers, one for each run, in order."""

    group: EntryGroup = field(default_factory=EntryGroup)
    contexts: list[object] = field(default_factory=list)
    kind = FrameKind.ENTRIES

    @property
    def records(self) -> int:
        """The number of entries."""
        return self.group.entries

    @property
    def payload_bytes(self) -> int:
        """The total size of the payloads in bytes."""
        return self.group.payload_bytes

    @property
    def frame_bytes(self) -> int:
        """The approximate size of the frame in bytes."""
        return self.payload_bytes + _ENTRY_OVERHEAD_BYTES * self.records + _FRAME_OVERHEAD_BYTES

    def encode(self, at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
        """Encode the group as the frame at position `at` of the chain; `lac` is the last acknowledged frame, or -1."""
        return encode_entries(self.group, at, lac)


@dataclass(slots=True)
class CursorGroup:
    """The cursor records of one future frame and the contexts given by their callers, in order."""

    items: list[tuple[bytes, bytes]] = field(default_factory=list)
    contexts: list[object] = field(default_factory=list)
    payload_bytes: int = 0
    kind = FrameKind.CURSOR

    @property
    def records(self) -> int:
        """The number of cursor records."""
        return len(self.contexts)

    @property
    def frame_bytes(self) -> int:
        """The approximate size of the frame in bytes."""
        return self.payload_bytes + _ENTRY_OVERHEAD_BYTES * self.records + _FRAME_OVERHEAD_BYTES

    def encode(self, at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
        """Encode the group as the frame at position `at` of the chain; `lac` is the last acknowledged frame, or -1."""
        return encode_cursor(self.items, at, lac)


Group: TypeAlias = EntriesGroup | CursorGroup


class Filling:
    """Queue of the groups that are not sent yet."""

    def __init__(self, limits: JournalLimits) -> None:
        self._limits = limits
        self._entries = EntriesGroup()
        self._cursors = CursorGroup()
        self._closed: deque[Group] = deque()

    @property
    def has_closed(self) -> bool:
        """True if a group is full, so that it need not wait for a free path."""
        return bool(self._closed)

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be sent."""
        return not (self._closed or self._entries.contexts or self._cursors.contexts)

    def fitting(self, payloads: Sequence[Payload], entries: int, size_bytes: int) -> int:
        """Return how many of these entries, from the first on, fit into the open group and into the given bounds.

        The last of them may be the one that reaches a bound.
        """
        group, limits = self._entries.group, self._limits
        entries = min(entries, limits.group_entries - group.entries)
        size_bytes = min(size_bytes, limits.group_bytes - group.payload_bytes)
        if len(payloads) <= entries and sum(map(len, payloads)) < size_bytes:
            return len(payloads)
        ends = accumulate(map(len, payloads))
        return next((n for n, end in enumerate(ends, 1) if n >= entries or end >= size_bytes), len(payloads))

    def add_entries(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        message_count: int,
        publish_time_ms: int,
        payloads: Sequence[Payload],
        context: object,
    ) -> None:
        """Add entries that are `fitting` (see `EntryGroup.add` for the errors)."""
        filling = self._entries
        group = filling.group
        group.add(ledger_id, first, message_count, publish_time_ms, payloads)
        filling.contexts.append(context)
        if group.payload_bytes >= self._limits.group_bytes or group.entries >= self._limits.group_entries:
            self._close_entries()

    def add_cursor(self, subscription: bytes, record: bytes, context: object) -> None:
        """Add a cursor record to the open group. `context` is returned with its outcome."""
        filling = self._cursors
        filling.items.append((subscription, record))
        filling.contexts.append(context)
        filling.payload_bytes += len(subscription) + len(record)
        if filling.payload_bytes >= self._limits.group_bytes or len(filling.contexts) >= self._limits.group_entries:
            self._close_cursors()

    def next_closed(self) -> Group:
        """Remove the oldest closed group, and return it."""
        return self._closed.popleft()

    def close(self) -> None:
        """Close the open group of each kind, because a path is free."""
        if self._entries.contexts:
            self._close_entries()
        if self._cursors.contexts:
            self._close_cursors()

    def take_groups(self) -> list[Group]:
        """Remove all groups and return them in order."""
        self.close()
        groups = list(self._closed)
        self._closed.clear()
        return groups

    def _close_entries(self) -> None:
        self._closed.append(self._entries)
        self._entries = EntriesGroup()

    def _close_cursors(self) -> None:
        self._closed.append(self._cursors)
        self._cursors = CursorGroup()
