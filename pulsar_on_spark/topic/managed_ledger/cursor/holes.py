"""Ack holes: the messages that are acknowledged beyond a mark-delete position. Their number is not limited.

A roaring bitmap for each ledger has the wholly acknowledged entries. For a partly acknowledged entry, the bits of its
unacked messages are kept (Pulsar's ack set: 1 = still unacked). Within one epoch of a cursor, acknowledgements are only
added. So the holes of its records can be joined in any order and any number of times, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from pulsar_on_spark.model.errors import InvalidArgumentError

MAX_BATCH_MESSAGES: Final = 1 << 20
"""Maximum number of messages of a batch in an ack set: more than fit into `maxMessageSize`, and few enough to store."""
_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


def ack_set_bits(words: Sequence[int], batch_size: int) -> int:
    """Convert a client's `ack_set` to one number of bits, 1 = still unacked.

    The words have 64 bits, signed or not, and the lowest comes first. Bits beyond the batch are dropped, because they
    would prevent the entry from ever being acknowledged.

    Raises:
        InvalidArgumentError: the batch size is not from 1 to `MAX_BATCH_MESSAGES`.
    """
    mask = batch_mask(batch_size)
    used = words[: -(-batch_size // _WORD_BITS)]
    return int.from_bytes(b"".join((word & _WORD_MASK).to_bytes(8, "little") for word in used), "little") & mask


def ack_set_words(bits: int) -> tuple[int, ...]:
    """Convert bits to the `ack_set` of a MESSAGE command: words of 64 bits, lowest first; empty for no bits."""
    return tuple(bits >> at & _WORD_MASK for at in range(0, bits.bit_length(), _WORD_BITS)) if bits else ()


def batch_mask(batch_size: int) -> int:
    """Return a number with a bit for each message of a batch.

    Raises:
        InvalidArgumentError: the batch size is not from 1 to `MAX_BATCH_MESSAGES`.
    """
    if not 0 < batch_size <= MAX_BATCH_MESSAGES:
        raise InvalidArgumentError(
            f"A batch cannot have {batch_size} messages: give a size from 1 to {MAX_BATCH_MESSAGES}."
        )
    return (1 << batch_size) - 1


class AckHoles:
    """Acknowledged entries and messages, by ledger. An entry is stored as wholly or partly acknowledged, not both."""

    __slots__ = ("_partial", "_whole")

    def __init__(self) -> None:
        self._whole: dict[int, BitMap64] = {}
        self._partial: dict[int, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._whole or self._partial)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AckHoles) and (self._whole, self._partial) == (other._whole, other._partial)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AckHoles({self.count} entries in {len(self._whole)} ledgers, {len(self._partial)} ledgers with parts)"

    @property
    def count(self) -> int:
        """Number of entries that are acknowledged as a whole."""
        return sum(map(len, self._whole.values()))

    @property
    def ledgers(self) -> list[int]:
        """The ids of the ledgers with holes, ascending."""
        return sorted(self._whole.keys() | self._partial.keys())

    def whole(self, ledger: int) -> BitMap64 | None:
        """Return a ledger's wholly acknowledged entries, which the caller must not change; None if there are none."""
        return self._whole.get(ledger)

    def partial(self, ledger: int) -> dict[int, int]:
        """Return the unacked bits of a ledger's partly acknowledged entries, by entry; callers must not change them."""
        return self._partial.get(ledger, {})

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ledger, first, end) of each run of wholly acknowledged entries, in order."""
        for ledger in sorted(self._whole):
            whole = self._whole[ledger]
            at, end = whole.min(), whole.max() + 1
            while at < end:
                gap = gap_from(whole, at)
                yield ledger, at, gap
                at = next_from(whole, gap, end)

    def is_acked(self, ledger: int, entry: int) -> bool:
        """Return True if the entry is wholly acknowledged."""
        whole = self._whole.get(ledger)
        return whole is not None and entry in whole

    def ack_set(self, ledger: int, entry: int) -> int | None:
        """Return the unacked bits of a partly acknowledged entry; None for any other entry."""
        partial = self._partial.get(ledger)
        return None if partial is None else partial.get(entry)

    def add(self, ledger: int, entry: int) -> bool:
        """Acknowledge an entry. Return True, or False if it was acknowledged as a whole before."""
        whole = self._whole.get(ledger)
        if whole is None:
            whole = self._whole[ledger] = BitMap64()
        elif entry in whole:
            return False
        whole.add(entry)
        if self._partial:
            self.forget_partial(ledger, entry)
        return True

    def add_many(self, ledger: int, entries: npt.NDArray[np.int64]) -> None:
        """Acknowledge many entries; none of them may be partly acknowledged."""
        if len(entries):
            self._whole.setdefault(ledger, BitMap64()).update(BitMap64(entries.astype(np.uint64)))

    def narrow(self, ledger: int, entry: int, unacked: int) -> bool:
        """Acknowledge all messages of an entry except those in `unacked`; earlier acknowledgements are kept.

        If no unacked message is left, the entry is acknowledged as a whole.

        Returns:
            True if a message is newly acknowledged.
        """
        if self.is_acked(ledger, entry):
            return False
        before = self.ack_set(ledger, entry)
        remaining = unacked if before is None else before & unacked
        if remaining == before:
            return False
        if remaining == 0:
            return self.add(ledger, entry)
        self._partial.setdefault(ledger, {})[entry] = remaining
        return True

    def forget_partial(self, ledger: int, entry: int) -> None:
        """Drop the unacked bits of an entry, because it is acknowledged as a whole."""
        partial = self._partial.get(ledger)
        if partial is not None and partial.pop(entry, None) is not None and not partial:
            del self._partial[ledger]

    def take_run(self, ledger: int, entry: int) -> int:
        """Drop the run of wholly acknowledged entries that begins at `entry`. Return the first entry after the run.

        If `entry` is not wholly acknowledged, nothing is dropped and `entry` is returned.
        """
        whole = self._whole.get(ledger)
        if whole is None or entry not in whole:
            return entry
        gap = gap_from(whole, entry)
        whole.remove_range(entry, gap)
        if not whole:
            del self._whole[ledger]
        return gap

    def drop_before(self, ledger: int, entry: int) -> None:
        """Drop all acknowledgements before a position."""
        for old in [old for old in self._whole.keys() | self._partial.keys() if old < ledger]:
            self._whole.pop(old, None)
            self._partial.pop(old, None)
        whole, partial = self._whole.get(ledger), self._partial.get(ledger)
        if whole is not None:
            whole.remove_range(0, entry)
            if not whole:
                del self._whole[ledger]
        if partial is not None:
            for old in [old for old in partial if old < entry]:
                del partial[old]
            if not partial:
                del self._partial[ledger]

    def unacked_runs(self, ledger: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs [from, to) of entries in [first, end) that are not acknowledged as a whole."""
        whole = self._whole.get(ledger)
        at = first
        while at < end:
            if whole is not None:
                at = gap_from(whole, at)
            stop = min(next_from(whole, at, end), end)
            if at < stop:
                yield at, stop
            at = stop

    def within(self, ledger: int, first: int, end: int) -> AckHoles:
        """Return the holes of a ledger's entries in [first, end)."""
        holes = AckHoles()
        whole = self._whole.get(ledger)
        entries = BitMap64()
        if whole is not None:
            entries.add_range(first, end)
            entries &= whole
        holes.put(ledger, entries, ((at, bits) for at, bits in self.partial(ledger).items() if first <= at < end))
        return holes

    def join(self, other: AckHoles) -> None:
        """Acknowledge all messages that `other` acknowledges."""
        for ledger, whole in other._whole.items():
            own_whole = self._whole.get(ledger)
            if own_whole is None:
                self._whole[ledger] = whole.copy()
            else:
                own_whole |= whole
            for entry in [entry for entry in self.partial(ledger) if entry in whole]:
                self.forget_partial(ledger, entry)
        for ledger, partial in other._partial.items():
            for entry, unacked in partial.items():
                self.narrow(ledger, entry, unacked)

    def put(self, ledger: int, whole: BitMap64, partial: Iterable[tuple[int, int]]) -> None:
        """Store the holes of a ledger that has none yet.

        Args:
            ledger: The ledger.
            whole: The wholly acknowledged entries.
            partial: (entry, unacked bits) of each partly acknowledged entry.
        """
        if whole:
            self._whole[ledger] = whole
        bits = dict(partial)
        if bits:
            self._partial[ledger] = bits


def gap_from(acked: BitMap64, entry: int) -> int:
    """Return the first entry from `entry` on that is not in the bitmap. Doubling steps make long runs cheap."""
    if entry not in acked:
        return entry
    low, step = entry + 1, 1
    while acked.contains_range(low, low + step):
        low += step
        step *= 2
    while step > 1:  # [entry, low) is acked, [low, low + step) is not all acked
        step //= 2
        if acked.contains_range(low, low + step):
            low += step
    return low


def next_from(acked: BitMap64 | None, entry: int, end: int) -> int:
    """Return the first entry in [entry, end) that is in the bitmap.

    `end` if there is none, or if the bitmap is None.
    """
    if acked is None:
        return end
    try:
        return acked.next_set_bit(entry)
    except ValueError:  # the bitmap has no such entry
        return end
