"""Encoding frames: the hot path of group commit, with costs per group instead of per entry wherever possible."""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from operator import add, itemgetter
from typing import Literal, TypeAlias

import numpy as np
from crc32c import crc32c

from pulsar_on_spark.ledger.journal.codec_batch import padded
from pulsar_on_spark.ledger.journal.frame_header import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    ChainPoint,
    FrameHeader,
    pack_header,
)
from pulsar_on_spark.ledger.journal.frames import CURSOR, ENTRIES, ROLL, entries_columns, payload_start
from pulsar_on_spark.ledger.journal.log import FrameKind, FrameNumber
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId

JOIN_BELOW_BYTES = 16 * 1024
"""Payloads below this average size are copied into one buffer; larger ones are written without a copy.

Measured for one checksum and three writes (2-core AMD EPYC): 100 payloads of 1 KiB cost 29 µs joined and 48 µs apart,
8 of 128 KiB 150 µs joined and 134 µs apart; 16 KiB is about even.
"""

MAX_BUFFERS = 512
"""Limit of an encoded frame's buffers; writev takes at most 1,024 (IOV_MAX on Linux)."""

_RUN = struct.Struct("<qqIIII")
"""An item of the directory, as `frames.RUN`."""
_LARGEST_INT64 = 2**63 - 1
_LARGEST_INT32 = 2**31 - 1

Payload: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview has items of one byte. The bytes must not change until the frame is written."""
_Run: TypeAlias = tuple[LedgerId, EntryId, int, int, Sequence[Payload]]
"""Entries that follow each other in a ledger: the arguments of `EntryGroup.add`."""


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A frame's bytes, to be appended to every copy; large payloads are used as buffers without a copy."""

    header: FrameHeader
    buffers: tuple[Payload, ...]

    @property
    def size_bytes(self) -> int:
        """The frame's size in bytes."""
        return self.header.size_bytes


class EntryGroup:
    """Entries of any ledgers that will form one frame. Payloads are referenced, not copied.

    The group keeps a row per run of entries and only a number per ledger: 4,096 entries may belong to 4,096 ledgers,
    and a few containers per ledger would halve the throughput. `entries` counts the entries, `payload_bytes` is the
    payloads' total size.
    """

    __slots__ = ("_next", "_runs", "entries", "payload_bytes")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._next: dict[LedgerId, int] = {}
        self.entries = 0
        self.payload_bytes = 0

    def add(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        message_count: int,
        publish_time_ms: int,
        payloads: Sequence[Payload],
    ) -> None:
        """Add a ledger's next entries.

        Args:
            ledger_id: The ledger.
            first: The id of the first entry; the ids of the others follow it.
            message_count: The number of messages in each entry.
            publish_time_ms: The time at which the broker received the entries, in milliseconds since 1970.
            payloads: The bytes of each entry.

        Raises:
            InvalidArgumentError: the first entry's id is not the next after the ledger's last entry in the group, or a
                number is out of range. The group is unchanged.
        """
        if not (0 <= publish_time_ms <= _LARGEST_INT64 and 0 <= message_count <= _LARGEST_INT32):
            raise InvalidArgumentError(
                f"Entry {ledger_id}:{first} has {message_count} messages and publish time {publish_time_ms} ms: "
                "the count must be 0 to 2^31-1, and the time 0 to 2^63-1."
            )
        following = self._next.get(ledger_id, first)
        if first != following:
            raise InvalidArgumentError(
                f"Entry {ledger_id}:{first} does not follow entry {following - 1}: "
                "add the entries of a ledger in order and without gap."
            )
        self._next[ledger_id] = first + len(payloads)
        self._runs.append((ledger_id, first, message_count, publish_time_ms, payloads))
        self.entries += len(payloads)
        self.payload_bytes += sum(map(len, payloads))

    def by_ledger(self) -> tuple[list[_Run], Mapping[LedgerId, int]]:
        """Return the runs sorted by ledger, each ledger's in order, and the number of entries of each ledger."""
        if len(self._next) == 1:
            return self._runs, dict.fromkeys(self._next, self.entries)
        runs = sorted(self._runs, key=itemgetter(0))
        entries_of: Counter[LedgerId] = Counter()
        for ledger_id, *_, payloads in runs:
            entries_of[ledger_id] += len(payloads)
        return runs, entries_of


def encode_entries(group: EntryGroup, at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
    """Encode a group of at least one entry as an ENTRIES frame; `lac` is the last acknowledged frame, or -1.

    Raises:
        InvalidArgumentError: the group is empty, or the frame would be longer than `MAX_FRAME_BYTES`.
    """
    if not group.entries:
        raise InvalidArgumentError("A frame of entries needs an entry: give a group that is not empty.")
    rows = group.entries
    ordered, entries_of = group.by_ledger()
    ledgers, firsts, counts, times_ms, runs = zip(*ordered, strict=True)
    sizes = [*map(len, runs)]
    ledger_ids, message_counts, publish_times_ms = (
        [*chain.from_iterable(map(repeat, values, sizes))] for values in (ledgers, counts, times_ms)
    )
    entry_ids = [*chain.from_iterable(map(range, firsts, map(add, firsts, sizes)))]
    payloads = [*chain.from_iterable(runs)]
    start = payload_start(len(entries_of), rows)
    _check_length(start + group.payload_bytes, f"{rows} entries")

    offsets = list(accumulate(map(len, payloads), initial=0))
    columns = (
        *(_column("q", ledger_ids), _column("q", entry_ids)),
        *(_column("i", message_counts), _column("q", publish_times_ms), _column("i", offsets)),
    )
    message = ENTRIES.message(rows, (*entries_columns(rows), offsets[-1]))
    directory = _directory(entries_of, entry_ids, offsets, start)
    return _encode(FrameKind.ENTRIES, at, lac, rows, directory, [b"".join((message, *columns)), *payloads])


def _directory(
    entries_of: Mapping[LedgerId, int], entry_ids: Sequence[int], offsets: Sequence[int], start: int
) -> bytes:
    """Encode a frame's directory: one item for each ledger.

    Args:
        entries_of: The number of entries by ledger, in the order of the rows.
        entry_ids: The entry id of each row.
        offsets: The offset of each row's payload from the first payload, and the end of the last one.
        start: The offset of the payloads in the frame.
    """
    bounds = list(accumulate(entries_of.values(), initial=0))
    payload_bounds = [offsets[row] + start for row in bounds]
    return b"".join(
        map(
            _RUN.pack,
            *(entries_of, [entry_ids[row] for row in bounds[:-1]], entries_of.values(), bounds, payload_bounds),
            [end - begin for begin, end in pairwise(payload_bounds)],
        )
    )


def encode_cursor(records: Sequence[tuple[bytes, bytes]], at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
    """Encode one or more (subscription key, cursor record) pairs as a CURSOR frame; `lac` as `encode_entries`.

    Raises:
        InvalidArgumentError: there is no record, or the frame would be longer than `MAX_FRAME_BYTES`.
    """
    if not records:
        raise InvalidArgumentError("A cursor frame needs a record: give at least one.")
    rows = len(records)
    lengths: list[int] = []
    buffers: list[bytes] = []
    for parts in zip(*records, strict=True):
        sizes = np.fromiter(map(len, parts), np.int64, rows)
        _check_length(HEADER_BYTES + CURSOR.message_bytes + int(sizes.sum()), f"{rows} cursor records")
        offsets = np.zeros(rows + 1, "<i4")
        np.cumsum(sizes, out=offsets[1:])
        lengths += (offsets.nbytes, int(offsets[-1]))
        buffers += (_aligned(offsets.tobytes()), _aligned(b"".join(parts)))
    return _encode(FrameKind.CURSOR, at, lac, rows, b"", [CURSOR.message(rows, lengths), *buffers])


def encode_lac(at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
    """Encode a LAC frame, which only names the last acknowledged frame (`lac`), for tail readers of an idle log."""
    return _encode(FrameKind.LAC, at, lac, 0, b"", [])


def encode_roll(next_fragment: int, at: ChainPoint, lac: FrameNumber) -> EncodedFrame:
    """Encode the last frame of a fragment, which names the next fragment by its number; `lac` as `encode_entries`."""
    return _encode(FrameKind.ROLL, at, lac, 0, b"", [ROLL.pack(next_fragment)])


def _encode(
    kind: FrameKind, at: ChainPoint, lac: FrameNumber, rows: int, directory: bytes, pieces: list[Payload]
) -> EncodedFrame:
    content_bytes = sum(map(len, pieces))
    pieces.append(bytes(padded(content_bytes) - content_bytes))
    content_bytes = padded(content_bytes)
    _check_length(HEADER_BYTES + len(directory) + content_bytes, f"{rows} rows")
    if len(pieces) >= MAX_BUFFERS or content_bytes < JOIN_BELOW_BYTES * len(pieces):
        pieces = [b"".join(pieces)]
    content_crc = 0
    for piece in pieces:
        content_crc = crc32c(piece, content_crc)
    packed, header = pack_header(kind, at, lac, rows, directory, content_bytes, content_crc)
    return EncodedFrame(header, (packed + directory, *pieces))


def _check_length(size_bytes: int, what: str) -> None:
    if size_bytes > MAX_FRAME_BYTES:
        raise InvalidArgumentError(
            f"A frame of {what} would have {size_bytes} bytes, more than {MAX_FRAME_BYTES}: put fewer into one frame."
        )


def _column(kind: Literal["i", "q"], values: Sequence[int]) -> bytes:
    column = array(kind, values)
    if sys.byteorder == "big":
        column.byteswap()
    return _aligned(column.tobytes())


def _aligned(column: bytes) -> bytes:
    return column + bytes(padded(len(column)) - len(column))
