"""The bytes of a frame, which is the entry of an incarnation's log: encoded once, the same on every storage path.

    header      56 bytes, see `frame_header`; its CRC covers the two CRCs below and so the whole frame
    directory   32 bytes for each ledger with entries in the frame, see `RUN`
    content     ENTRIES and CURSOR: an uncompressed Arrow record batch message; ROLL: the next fragment's number
    padding     zeros up to a multiple of 8 bytes

Everything is little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_on_spark.ledger.journal.codec_batch import BatchLayout, padded
from pulsar_on_spark.ledger.journal.frame_header import DIRECTORY_ITEM_BYTES, HEADER_BYTES, FrameHeader
from pulsar_on_spark.ledger.journal.log import FrameKind
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import EntryId, LedgerId

ENTRIES_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("message_count", pa.int32(), nullable=False),
        pa.field("publish_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of an entries frame: a row for each entry, a ledger's rows together and in order.

The ids repeat the directory, so that the batch alone is enough for an Arrow reader. Backlogs and retention need the
number of messages and the time without parsing the payload, which is stored as received.
"""

CURSOR_SCHEMA = pa.schema(
    [
        pa.field("subscription", pa.binary(), nullable=False),
        pa.field("record", pa.binary(), nullable=False),
    ]
)
"""The columns of a cursors frame: a row for each cursor record. The journal interprets neither column."""

ENTRIES = BatchLayout((1, 1, 1, 1, 2))
CURSOR = BatchLayout((2, 2))
ROLL = struct.Struct("<Q")

_LARGEST_INT64 = 2**63 - 1

RUN = np.dtype(
    [
        ("ledger_id", "<i8"),
        ("first_entry", "<i8"),
        ("entries", "<u4"),
        ("first_row", "<u4"),
        ("payload_offset", "<u4"),
        ("payload_bytes", "<u4"),
    ]
)
"""An item of the directory; see `LedgerRun`."""
assert RUN.itemsize == DIRECTORY_ITEM_BYTES, "a header counts directory items of this length"


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """The entries of one ledger in a frame: rows [first_row, first_row + entries) of its batch.

    `payload_offset` is the offset in bytes of their payloads in the frame, which are contiguous and `payload_bytes`
    long.
    """

    ledger_id: LedgerId
    first_entry: EntryId
    entries: int
    first_row: int
    payload_offset: int
    payload_bytes: int


class EntryColumns(NamedTuple):
    """Rows of an ENTRIES frame without their payloads, in the types of `ENTRIES_SCHEMA`, as views of the frame.

    `offsets` has the start of each row's payload, and the end of the last one, from the first payload of the frame on.
    """

    ledger_ids: npt.NDArray[np.int64]
    entry_ids: npt.NDArray[np.int64]
    message_counts: npt.NDArray[np.int32]
    publish_times: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FrameHead:
    """A frame's header and directory, which locate all other content of the frame.

    `file` is the file's name in errors, `offset` the frame's offset in the file in bytes.
    """

    header: FrameHeader
    file: str
    offset: int
    directory: memoryview

    @property
    def name(self) -> str:
        """The frame's name in errors: its number, file and offset."""
        return f"Frame {self.header.number} of {self.file}, at byte {self.offset},"

    def runs(self) -> tuple[LedgerRun, ...]:
        """Return the run of entries of each ledger in the frame.

        Raises:
            CorruptJournalError: the directory does not fit the frame.
        """
        return tuple(LedgerRun(*item) for item in self._items().tolist())

    @property
    def columns_end(self) -> int:
        """The offset in bytes of the payloads in an ENTRIES frame, after header, directory and all other columns."""
        return payload_start(self.header.runs, self.header.rows)

    def batch_of(self, run: LedgerRun, columns: memoryview, payloads: memoryview) -> pa.RecordBatch:
        """Build the rows of one ledger in `ENTRIES_SCHEMA` from bytes that the caller read; payloads are not copied.

        Args:
            run: One of `runs()`.
            columns: The frame's bytes from `header.head_bytes` to `columns_end`.
            payloads: The bytes of the run's payloads.

        Raises:
            CorruptJournalError: the bytes differ from those that a writer makes for this head.
        """
        items = self._items()
        ids = (
            np.full(run.entries, run.ledger_id),
            np.arange(run.first_entry, run.first_entry + run.entries),
        )
        bounds = np.array((0, run.entries)), np.array((0, run.payload_bytes)) + run.payload_offset - self.columns_end
        found = self._columns(int(items["payload_bytes"].sum()), columns, run.first_row, ids, bounds)
        self._expect(len(payloads) == run.payload_bytes, "payloads of a wrong length")
        return _batch(found, payloads)

    def _columns(
        self,
        all_payload_bytes: int,
        columns: memoryview,
        first_row: int,
        ids: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
        bounds: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    ) -> EntryColumns:
        """Return the rows from `first_row` on, and check their ids, and their payload offsets at some rows.

        Args:
            all_payload_bytes: The size of all payloads of the frame.
            columns: As in `batch_of`.
            first_row: The first of the rows.
            ids: The ledger ids and the entry ids that the rows must have.
            bounds: Indices of rows, and the payload offsets that these rows must have.
        """
        lengths = entries_columns(self.header.rows)
        rows = len(ids[0])
        self._expect(len(columns) == self.columns_end - self.header.head_bytes, "columns of a wrong length")
        self._expect(
            columns[: ENTRIES.message_bytes] == ENTRIES.message(self.header.rows, (*lengths, all_payload_bytes)),
            "a wrong batch layout",
        )
        starts = list(accumulate(map(padded, lengths), initial=ENTRIES.message_bytes))
        found = EntryColumns(
            *(
                np.frombuffer(columns, dtype, rows + extra, start + np.dtype(dtype).itemsize * first_row)
                for start, dtype, extra in zip(
                    starts, ("<i8", "<i8", "<i4", "<i8", "<i4"), (0, 0, 0, 0, 1), strict=False
                )
            )
        )
        are_right = np.array_equal(found.ledger_ids, ids[0]) and np.array_equal(found.entry_ids, ids[1])
        self._expect(are_right, "wrong entry ids")
        offsets = found.offsets
        self._expect(
            np.array_equal(offsets[bounds[0]], bounds[1]) and bool((offsets[1:] >= offsets[:-1]).all()),
            "wrong payload offsets",
        )
        return found

    def _items(self) -> npt.NDArray[np.void]:
        header = self.header
        self._expect(header.kind is FrameKind.ENTRIES, f"no directory, but is of kind {header.kind.name}")
        items = np.frombuffer(self.directory, RUN)
        entries, payload_bytes = items["entries"].astype(np.int64), items["payload_bytes"].astype(np.int64)
        end = self.columns_end + int(payload_bytes.sum())
        self._expect(
            bool(entries.all() and (items["first_entry"] >= 0).all())
            and bool((items["first_entry"] <= _LARGEST_INT64 - entries).all())
            and entries.sum() == header.rows
            and np.array_equal(items["first_row"], np.cumsum(entries) - entries)
            and np.array_equal(items["payload_offset"], np.cumsum(payload_bytes) - payload_bytes + self.columns_end)
            and padded(end) == header.size_bytes
            and len(np.unique(items["ledger_id"])) == len(items),
            "a wrong directory",
        )
        return items

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            raise CorruptJournalError(f"{self.name} is malformed, as it has {otherwise}: read another copy.")


@dataclass(frozen=True, slots=True)
class Frame(FrameHead):
    """A whole frame with verified checksums, the same on every copy.

    Attributes:
        window: The bytes that were read at once, which may have other frames of the file, too.
        start: The frame's offset in `window` in bytes.
    """

    window: memoryview
    start: int

    @property
    def data(self) -> memoryview:
        """All bytes of the frame."""
        return self.window[self.start : self.start + self.header.size_bytes]

    @property
    def content(self) -> memoryview:
        """The frame's bytes after header and directory, including the padding."""
        return self.data[self.header.head_bytes :]

    @property
    def payloads_at(self) -> int:
        """The offset in `window` of the payloads in an ENTRIES frame, in bytes."""
        return self.start + self.columns_end

    def entry_columns(self) -> EntryColumns:
        """Return the columns of an ENTRIES frame; no bytes are copied.

        Raises:
            CorruptJournalError: the frame is of another kind, or not what a writer makes.
        """
        items = self._items()
        bytes_before = items["payload_offset"].astype(np.int64) - self.columns_end
        total = int(items["payload_bytes"].sum())
        bounds = np.append(items["first_row"], self.header.rows), np.append(bytes_before, total)
        columns = self.data[self.header.head_bytes : self.columns_end]
        return self._columns(total, columns, 0, id_columns(items), bounds)

    def record_batch(self) -> pa.RecordBatch:
        """Return the entries of an ENTRIES frame in `ENTRIES_SCHEMA`, without a copy (errors as `entry_columns`)."""
        columns = self.entry_columns()
        return _batch(columns, self.window[self.payloads_at : self.payloads_at + int(columns.offsets[-1])])

    def cursor_records(self) -> list[tuple[bytes, bytes]]:
        """Return the (subscription key, cursor record) pairs of a CURSOR frame.

        Raises:
            CorruptJournalError: the frame is of another kind, or not what a writer makes.
        """
        self._expect(self.header.kind is FrameKind.CURSOR, f"no cursor records, but is of kind {self.header.kind.name}")
        rows, content = self.header.rows, self.content
        start, lengths, columns = CURSOR.message_bytes, [], []
        for _ in CURSOR_SCHEMA:
            data_start = start + padded(4 * (rows + 1))
            self._expect(data_start <= len(content), "too few records")
            offsets = np.frombuffer(content, "<i4", rows + 1, start)
            data_bytes = int(offsets[-1])
            self._expect(offsets[0] == 0 and bool((np.diff(offsets) >= 0).all()), "wrong offsets")
            self._expect(data_start + padded(data_bytes) <= len(content), "truncated records")
            lengths += [offsets.nbytes, data_bytes]
            columns.append([bytes(content[data_start + a : data_start + b]) for a, b in pairwise(offsets.tolist())])
            start = data_start + padded(data_bytes)
        self._expect(start == len(content), "extra bytes")
        self._expect(content[: CURSOR.message_bytes] == CURSOR.message(rows, lengths), "a wrong batch layout")
        return list(zip(*columns, strict=True))

    def next_fragment(self) -> int:
        """Return the number of the fragment that a ROLL frame names.

        Raises:
            CorruptJournalError: the frame is of another kind, or not what a writer makes.
        """
        self._expect(self.header.kind is FrameKind.ROLL, f"no next fragment, but is of kind {self.header.kind.name}")
        self._expect(len(self.content) == ROLL.size, "a wrong length")
        (number,) = ROLL.unpack(self.content)
        return int(number)


def _batch(columns: EntryColumns, payloads: memoryview) -> pa.RecordBatch:
    """Build the rows of these columns in `ENTRIES_SCHEMA`, from the bytes of their payloads."""
    offsets = columns.offsets
    if offsets[0]:
        offsets = offsets - offsets[0]
    buffers_of = [*((column,) for column in columns[:-1]), (offsets, payloads)]
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(field.type, len(columns.entry_ids), [None, *map(pa.py_buffer, buffers)])
            for field, buffers in zip(ENTRIES_SCHEMA, buffers_of, strict=True)
        ],
        schema=ENTRIES_SCHEMA,
    )


def payload_views(batch: pa.RecordBatch) -> list[memoryview]:
    """Return the payload of each row of a batch in `ENTRIES_SCHEMA`, as views of the bytes that the batch holds."""
    column = batch.column("payload")
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset).tolist()
    view = memoryview(data)
    return [view[start:end] for start, end in pairwise(bounds)]


def entries_columns(rows: int) -> tuple[int, ...]:
    """Return the length in bytes of each buffer of an ENTRIES batch, without padding, except the payloads' buffer."""
    return (8 * rows, 8 * rows, 4 * rows, 8 * rows, 4 * (rows + 1))


def payload_start(runs: int, rows: int) -> int:
    """Return the offset in bytes of the payloads in an ENTRIES frame with these numbers of ledgers and entries."""
    return HEADER_BYTES + RUN.itemsize * runs + ENTRIES.message_bytes + sum(map(padded, entries_columns(rows)))


def id_columns(directory: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ledger id and the entry id of each row of a frame with this directory."""
    entries = directory["entries"].astype(np.int64)
    ledger_ids = np.repeat(directory["ledger_id"], entries)
    first_entries = np.repeat(directory["first_entry"] - directory["first_row"], entries)
    return ledger_ids, first_entries + np.arange(len(ledger_ids))
