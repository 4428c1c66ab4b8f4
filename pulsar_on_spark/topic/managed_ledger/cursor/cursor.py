"""A broker subscription's cursor: its acknowledged messages, and the entries to deliver next. No IO, no clock.

It corresponds to Pulsar's ManagedCursor: a mark-delete position, and entries and single messages of batches that are
acknowledged beyond it. As everywhere in this project, a position is the *next* entry to read; Pulsar's own mark-delete
position is the entry before it. The owner calls:

    acknowledge, acknowledge_through, reset_position, apply_chain     for requests of clients and changes of the topic
    take_change(n)      once for each journal frame n, to put the changes since the last record into the frame
    snapshot()          every few seconds, to put the whole cursor as of the last record into the cursors table
    replay_records(...) when a new owner takes over; then Cursor(chain, replayed.begun(epoch))

A cursor keeps all acknowledgements in compressed bitmaps. It never drops any (Pulsar drops them above
`managedLedgerMaxUnackedRangesToPersist`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles, batch_mask
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord, decode_holes, encode_holes


class EntryRange(NamedTuple):
    """Entries [first, end) of a ledger."""

    ledger: LedgerId
    first: int
    end: int


class Deliverable(NamedTuple):
    """Entries to read for consumers, none acknowledged as a whole, and the position from which to continue (`next`)."""

    ranges: tuple[EntryRange, ...]
    next: Position


class Cursor:
    """A subscription's position and acknowledgements. Only its owner uses it, from one thread.

    Args:
        chain: The topic's ledgers.
        start: The snapshot from which the cursor continues, under the owner's epoch.
    """

    __slots__ = ("_chain", "_entry", "_epoch", "_holes", "_key", "_ledger", "_moved", "_n", "_news", "_snapshot_due")

    def __init__(self, chain: LedgerChain, start: CursorRecord) -> None:
        if start.kind != "snapshot":
            raise InvalidArgumentError(
                f"Cursor {start.subscription!r} cannot begin with a change: replay its records first."
            )
        self._chain = chain
        self._key = start.cursor_key
        self._epoch = start.epoch
        self._n = start.n
        self._holes = decode_holes(start.ack_holes)
        self._news = AckHoles()
        """Acknowledgements beyond the mark-delete position that are not in any record yet."""
        self._moved = False
        self._snapshot_due = True
        """True if the next record must be a snapshot, as the first record of an epoch must be."""
        self._ledger, self._entry = int(start.mark_delete.ledger), int(start.mark_delete.entry)
        self._move_to(*chain.normalize_position(self._ledger, self._entry))

    @property
    def mark_delete(self) -> Position:
        """The position of the first entry that is not acknowledged as a whole, or of the next entry to be written."""
        return Position(LedgerId(self._ledger), EntryId(self._entry))

    @property
    def epoch(self) -> int:
        """The epoch under which the owner writes the cursor's records."""
        return self._epoch

    @property
    def rank(self) -> tuple[int, int]:
        """(epoch, n) of the last record that `take_change` returned."""
        return (self._epoch, self._n)

    @property
    def ack_holes(self) -> bytes:
        """The acknowledgements beyond the mark-delete position, as bytes by `encode_holes`."""
        return encode_holes(self._holes)

    @property
    def backlog_entries(self) -> int:
        """Number of readable entries that are not acknowledged as a whole."""
        return self._chain.entries_from(self._ledger, self._entry) - self._holes.count

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge(self, ledger: LedgerId, entry: EntryId, ack_set: int = 0, batch_size: int = 1) -> bool:
        """Acknowledge an entry, or single messages of its batch.

        Args:
            ledger: The entry's ledger.
            entry: The entry's id.
            ack_set: Bits of the messages that are still unacked (`ack_set_bits`); 0 to acknowledge the whole entry.
            batch_size: The number of messages in the entry; used only with an ack set.

        Returns:
            True if a message is newly acknowledged.

        Raises:
            InvalidArgumentError: the topic has no such entry yet, or the batch size is impossible.
        """
        if self._is_behind(ledger, entry):
            return False
        if ack_set:
            return self._narrow(ledger, entry, ack_set, batch_size)
        if entry == self._entry and ledger == self._ledger:
            self._holes.forget_partial(ledger, entry)
            self._entry = entry + 1
            self._moved = True
            self._advance()
            return True
        if not self._holes.add(ledger, entry):
            return False
        self._news.add(ledger, entry)
        return True

    def acknowledge_through(self, ledger: LedgerId, entry: EntryId, ack_set: int = 0, batch_size: int = 1) -> bool:
        """Acknowledge all entries before an entry, and the entry itself as `acknowledge` does (Pulsar's Cumulative).

        Returns:
            True if a message is newly acknowledged.

        Raises:
            InvalidArgumentError: the topic has no such entry yet, or the batch size is impossible.
        """
        if self._is_behind(ledger, entry):
            return False
        if not ack_set:
            self._move_to(ledger, entry + 1)
            return True
        batch_mask(batch_size)  # raises for an impossible size, before anything moves
        moved = self._move_to(ledger, entry)
        passed = self._is_before_mark(ledger, entry)
        return (not passed and self._narrow(ledger, entry, ack_set, batch_size)) or moved

    def reset_position(self, position: Position, epoch: int, ack_set: int = 0, batch_size: int = 1) -> None:
        """Seek back or forward: drop all acknowledgements and begin a new epoch at a position.

        The next record is a snapshot. The caller commits a move back before it answers the client.

        Args:
            position: The next entry to read; if it is outside the chain, the result of `clamp_position` is used.
            epoch: The new epoch.
            ack_set: Bits of the messages of the entry at `position` that are still to be read; 0 for all.
            batch_size: The number of messages in the entry at `position`; used only with an ack set.

        Raises:
            InvalidArgumentError: the epoch is not above the current one, or the batch size is impossible.
        """
        if epoch <= self._epoch:
            raise InvalidArgumentError(
                f"Epoch {epoch} of subscription {self._key[1]!r} does not follow epoch {self._epoch}: give a later "
                "epoch."
            )
        mask = batch_mask(batch_size) if ack_set else 0
        at = self._chain.clamp_position(position)
        self._epoch, self._n = epoch, NO_RECORD
        self._holes, self._news = AckHoles(), AckHoles()
        self._ledger, self._entry = int(at.ledger), int(at.entry)
        self._snapshot_due = True
        unacked = ack_set & mask
        if unacked != mask and at == position and self._chain.holds_entry(at.ledger, at.entry):
            self._narrow(at.ledger, at.entry, unacked, batch_size)

    def clamp_position(self, position: Position) -> Position:
        """Return the position that a reset to `position`, which may be outside the chain, would set."""
        return self._chain.clamp_position(position)

    def apply_chain(self, chain: LedgerChain) -> bool:
        """Continue with a new chain, in which ledgers have ended, were added or were trimmed.

        Returns:
            True if the mark-delete position moved. Trimmed entries count as acknowledged.
        """
        self._chain = chain
        return self._move_to(*chain.normalize_position(self._ledger, self._entry))

    # -- reading ---------------------------------------------------------------------------------------------------

    def is_acked(self, ledger: LedgerId, entry: EntryId) -> bool:
        """Return True if the entry is acknowledged as a whole, so that it must not be delivered."""
        return self._is_before_mark(ledger, entry) or self._holes.is_acked(ledger, entry)

    def ack_set(self, ledger: LedgerId, entry: EntryId) -> int:
        """Return the bits of the unacked messages in a partly acknowledged entry; 0 for any other entry."""
        return self._holes.ack_set(ledger, entry) or 0

    def is_at_end(self, position: Position) -> bool:
        """Return True if no entry is deliverable from a position on.

        The result is False, too, if only empty ledgers follow the position's ledger.
        """
        return self._chain.is_at_end(position.ledger, position.entry)

    def deliverable(self, start: Position, max_entries: int) -> Deliverable:
        """Return the next entries to read from `start` on, up to the chain's end.

        Args:
            start: The last call's `next`, or an earlier position for redelivery.
            max_entries: Maximum number of entries in all ranges together.
        """
        position = max((int(start.ledger), int(start.entry)), (self._ledger, self._entry))
        ledger, entry = self._chain.normalize_position(*position)
        ranges: list[EntryRange] = []
        remaining = max_entries
        while remaining > 0:
            stop = entry
            for first, end in self._unacked(ledger, entry):
                stop = min(end, first + remaining)
                ranges.append(EntryRange(LedgerId(ledger), first, stop))
                remaining -= stop - first
                if remaining == 0:
                    break
            else:
                stop = max(self._chain.readable_end(ledger), entry)
            position = self._chain.normalize_position(ledger, stop)
            if position[0] == ledger:
                entry = position[1]
                break
            ledger, entry = position
        return Deliverable(tuple(ranges), Position(LedgerId(ledger), EntryId(entry)))

    # -- persisting ------------------------------------------------------------------------------------------------

    @property
    def unrecorded(self) -> bool:
        """True if there are changes that `take_change` has not returned yet."""
        return self._snapshot_due or self._moved or bool(self._news)

    def take_change(self, n: int) -> CursorRecord | None:
        """Return a record of the changes since the last record, for the journal's frame `n`; None without changes.

        Raises:
            InvalidArgumentError: `n` is not above the n of the epoch's last record.
        """
        if not self.unrecorded:
            return None
        if n <= self._n:
            raise InvalidArgumentError(
                f"Frame {n} of cursor {self._key[1]!r} does not follow frame {self._n}: give a later frame's number."
            )
        self._n = n
        if self._snapshot_due:
            self._news = AckHoles()
            self._moved = self._snapshot_due = False
            return self.snapshot()
        self._news.drop_before(self._ledger, self._entry)
        news, self._news, self._moved = encode_holes(self._news), AckHoles(), False
        return CursorRecord("change", *self._key, self._epoch, n, self.mark_delete, news)

    def want_snapshot(self) -> None:
        """Make the next record of `take_change` a snapshot, because the last record may not have been stored."""
        self._snapshot_due = True

    def snapshot(self) -> CursorRecord:
        """Return the whole cursor as of its last record. Call `take_change` first, so that no change is unrecorded."""
        assert not self.unrecorded, "take the change before the snapshot"
        return CursorRecord("snapshot", *self._key, self._epoch, self._n, self.mark_delete, self.ack_holes)

    # --------------------------------------------------------------------------------------------------------------

    def _is_before_mark(self, ledger: int, entry: int) -> bool:
        return ledger < self._ledger or (ledger == self._ledger and entry < self._entry)

    def _is_behind(self, ledger: int, entry: int) -> bool:
        """Return True if the entry is before the mark-delete position.

        Raises:
            InvalidArgumentError: the entry is not before it, and the topic has no such entry yet.
        """
        if self._is_before_mark(ledger, entry):
            return True
        if not self._chain.holds_entry(ledger, entry):
            raise InvalidArgumentError(
                f"Entry {ledger}:{entry} does not exist and cannot be acknowledged on subscription {self._key[1]!r} "
                f"(the topic ends at {self._chain.end}): acknowledge only delivered messages."
            )
        return False

    def _narrow(self, ledger: int, entry: int, ack_set: int, batch_size: int) -> bool:
        mask = batch_mask(batch_size)
        unacked = ack_set & mask
        if unacked == mask or not self._holes.narrow(ledger, entry, unacked):
            return False
        self._news.narrow(ledger, entry, unacked)
        if self._holes.is_acked(ledger, entry):
            # Earlier records may have acknowledged other messages of the entry, so add the whole entry.
            self._news.add(ledger, entry)
            self._advance()
        return True

    def _move_to(self, ledger: int, entry: int) -> bool:
        """Acknowledge all entries before a position. Return True if the mark-delete position moved."""
        before = (self._ledger, self._entry)
        if (ledger, entry) != before:
            self._holes.drop_before(ledger, entry)
            self._ledger, self._entry = ledger, entry
            self._moved = True
        self._advance()
        return (self._ledger, self._entry) != before

    def _unacked(self, ledger: int, entry: int) -> Iterator[tuple[int, int]]:
        """Yield the runs [from, to) of existing entries of a ledger that are not acknowledged as a whole."""
        for first, end in self._chain.runs(ledger, entry):
            yield from self._holes.unacked_runs(ledger, first, end)

    def _advance(self) -> None:
        """Move the mark-delete position past acknowledged entries, trimmed entries and the ends of ledgers."""
        while True:
            gap = self._holes.take_run(self._ledger, self._entry)
            ledger, entry = self._chain.normalize_position(self._ledger, gap)
            is_there = ledger == self._ledger and entry == gap
            self._ledger, self._entry = ledger, entry
            if is_there:
                return
            self._holes.drop_before(ledger, entry)
