"""The binary formats of a cursor: its records in the journal, and its ack holes in those records and the cursors table.

A record is a **snapshot** (the whole cursor) or a **change** (the mark-delete position, and new acknowledgements beyond
it since the last record). Within an epoch, acknowledgements are only added, so changes may be applied in any order and
any number of times. Every move back begins a new epoch with a snapshot.

    record  = version u8, CRC32C u32, kind u8, topic id 16 bytes, varint length + name,
              varints epoch, n, ledger, entry, then the ack holes to the end
    holes   = nothing, or version u8, CRC32C u32, varint count of ledgers, each: varint step from the ledger before,
              varint count of acked entries, these as varint steps (up to 16) or varint length + roaring bitmap (64-bit
              portable format), varint count of partly acked entries, each: varint step, varint length + unacked bits

Numbers are little-endian. A checksum covers the version before it and all bytes after it. It is verified first, because
the roaring format has no checksum, and its library may crash on a damaged bitmap or read it as other entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from crc32c import crc32c
from pyroaring import BitMap64

from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.model.errors import CorruptCursorError, FormatVersionError, InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId, varint
from pulsar_on_spark.topic.managed_ledger.cursor.holes import MAX_BATCH_MESSAGES, AckHoles

FORMAT_VERSION: Final = 1
NO_RECORD: Final = -1
"""The n of a cursor without a record of its epoch in the journal; the number of every journal frame is above it."""
RecordKind = Literal["snapshot", "change"]

_KINDS: Final[tuple[RecordKind, ...]] = ("snapshot", "change")
_TOPIC_ID_BYTES = 16
_HEADER_BYTES = 5
_FEW_ENTRIES = 16
"""Number of entries up to which varints take less space than a bitmap, which has 32 bytes of headers."""
_MAX_INT64 = 2**63 - 1
_MAX_VARINT_BYTES = 9


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """The content of one cursor record.

    Attributes:
        kind: "snapshot" or "change".
        topic_id: The topic.
        subscription: The subscription's name.
        epoch: The epoch, which grows with each move back and each change of owner.
        n: The number of the journal frame that has the record; it only grows within an epoch.
        mark_delete: The next entry to read: all entries before it are acknowledged.
        ack_holes: The acknowledgements beyond `mark_delete`, by `encode_holes`: all or, in a change, the new ones.
    """

    kind: RecordKind
    topic_id: TopicId
    subscription: str
    epoch: int
    n: int
    mark_delete: Position
    ack_holes: bytes = b""

    @property
    def cursor_key(self) -> tuple[TopicId, str]:
        """(topic id, subscription), the key of the cursor."""
        return (self.topic_id, self.subscription)

    @property
    def rank(self) -> tuple[int, int]:
        """(epoch, n); of the records of one cursor, the largest rank is the newest."""
        return (self.epoch, self.n)

    def begun(self, epoch: int) -> CursorRecord:
        """Return a snapshot with the same acknowledgements under a new epoch, for a new owner.

        Raises:
            InvalidArgumentError: the epoch is not above the epoch of this record.
        """
        if epoch <= self.epoch:
            raise InvalidArgumentError(
                f"Epoch {epoch} of subscription {self.subscription!r} does not follow epoch {self.epoch}: give a later "
                "epoch."
            )
        return replace(self, kind="snapshot", epoch=epoch, n=NO_RECORD)

    def to_row(self) -> CursorRow:
        """Convert a snapshot to a row of the cursors table."""
        assert self.kind == "snapshot", "a change alone has no cursor position"
        at, holes = self.mark_delete, self.ack_holes or None
        return CursorRow(self.topic_id, self.subscription, WHOLE, self.epoch, self.n, at.ledger, at.entry, holes)

    @classmethod
    def from_row(cls, row: CursorRow) -> CursorRecord:
        """Convert a row of the cursors table to a snapshot."""
        at = Position(LedgerId(row.ledger), EntryId(row.entry))
        topic_id = TopicId(row.topic_id)
        return cls("snapshot", topic_id, row.subscription, row.epoch, row.n, at, row.ack_holes or b"")


def encode(record: CursorRecord) -> bytes:
    """Encode a record.

    Raises:
        InvalidArgumentError: the topic id is not 32 hex digits in lower case, or a number is negative or does not fit
            63 bits.
    """
    topic_id, name = record.topic_id, record.subscription.encode()
    try:
        topic_bytes = bytes.fromhex(topic_id)
    except ValueError:
        topic_bytes = b""
    if len(topic_bytes) != _TOPIC_ID_BYTES or topic_bytes.hex() != topic_id:
        raise InvalidArgumentError(
            f"Cursor {record.subscription!r} has the topic id {topic_id!r}, which is not 32 hex digits in lower case."
        )
    numbers = (record.epoch, record.n, record.mark_delete.ledger, record.mark_delete.entry)
    if not all(0 <= number <= _MAX_INT64 for number in numbers):
        raise InvalidArgumentError(
            f"Cursor {record.subscription!r} has a number out of range among (epoch, n, ledger, entry) = {numbers}: "
            f"each must be from 0 to {_MAX_INT64}."
        )
    kind = bytes((_KINDS.index(record.kind),))
    head = [kind, topic_bytes, varint(len(name)), name, *map(varint, numbers)]
    return _sealed(b"".join([*head, record.ack_holes]))


def decode(data: bytes) -> CursorRecord:
    """Decode a record, and check that its ack holes can be decoded.

    Raises:
        CorruptCursorError: the bytes are not an intact record.
        FormatVersionError: the record has another format version than `FORMAT_VERSION`.
    """
    reader = _opened(data, "cursor record")
    kind = reader.take(1)[0]
    if kind >= len(_KINDS):
        raise reader.damage(f"unknown kind {kind}")
    topic_id = TopicId(reader.take(_TOPIC_ID_BYTES).hex())
    try:
        name = reader.take(reader.varint()).decode()
    except UnicodeDecodeError as error:
        raise reader.damage("the subscription's name is not UTF-8") from error
    epoch, n, ledger, entry = (reader.varint() for _ in range(4))
    holes = reader.rest()
    decode_holes(holes)
    return CursorRecord(_KINDS[kind], topic_id, name, epoch, n, Position(LedgerId(ledger), EntryId(entry)), holes)


def encode_holes(holes: AckHoles) -> bytes:
    """Encode ack holes for cursor records and rows; return no bytes if there are no holes."""
    if not holes:
        return b""
    ledgers = holes.ledgers
    parts = [varint(len(ledgers))]
    before = 0
    for ledger in ledgers:
        parts.append(varint(ledger - before))
        parts += _whole_parts(holes.whole(ledger))
        partial = holes.partial(ledger)
        parts.append(varint(len(partial)))
        last = 0
        for entry in sorted(partial):
            bits = partial[entry].to_bytes(-(-partial[entry].bit_length() // 8), "little")
            parts += (varint(entry - last), varint(len(bits)), bits)
            last = entry
        before = ledger
    return _sealed(b"".join(parts))


def decode_holes(data: bytes) -> AckHoles:
    """Decode ack holes.

    Raises:
        CorruptCursorError: the bytes are damaged.
        FormatVersionError: the bytes have another format version than `FORMAT_VERSION`.
    """
    holes = AckHoles()
    if not data:
        return holes
    reader = _opened(data, "set of ack holes")
    ledger = 0
    for _ in range(reader.varint()):
        ledger = reader.step(ledger)
        whole = _read_whole(reader)
        partial: list[tuple[int, int]] = []
        entry = 0
        for _ in range(reader.varint()):
            entry = reader.step(entry)
            partial.append((entry, _read_bits(reader)))
        if any(entry in whole for entry, _ in partial):
            raise reader.damage("an entry is acknowledged in two ways")
        holes.put(ledger, whole, partial)
    if reader.rest():
        raise reader.damage("bytes follow its end")
    return holes


def replay_records(records: Iterable[CursorRecord]) -> CursorRecord:
    """Return the state of one cursor after all its records, which may be in any order, stale or repeated.

    The newest snapshot counts, with all changes of its epoch. The records must include the cursor's row in the cursors
    table, if there is one, and all records in journals that may be newer than that row.

    Returns:
        A snapshot; its n is the largest of its epoch.

    Raises:
        InvalidArgumentError: there are no records, or the records are of more than one cursor.
        CorruptCursorError: the newest epoch has changes but no snapshot, or a record's ack holes are damaged.
    """
    record_list = list(records)
    keys = {record.cursor_key for record in record_list}
    if len(keys) != 1:
        raise InvalidArgumentError(
            f"Records of {len(keys)} cursors cannot be replayed: give the records of exactly one cursor."
        )
    base = max((record for record in record_list if record.kind == "snapshot"), key=lambda r: r.rank, default=None)
    newest = max(record.epoch for record in record_list)
    if base is None or base.epoch < newest:
        raise CorruptCursorError(
            f"Cursor {record_list[0].subscription!r} of topic {record_list[0].topic_id} has changes of epoch {newest} "
            "but no snapshot of that epoch: read the cursors table and the whole journal again."
        )
    changes = [record for record in record_list if record.epoch == base.epoch]
    mark_delete = max(record.mark_delete for record in changes)
    holes = decode_holes(base.ack_holes)
    for record in changes:
        if record is not base and record.ack_holes:
            holes.join(decode_holes(record.ack_holes))
    holes.drop_before(mark_delete.ledger, mark_delete.entry)
    n = max(record.n for record in changes)
    return replace(base, n=n, mark_delete=mark_delete, ack_holes=encode_holes(holes))


def _whole_parts(whole: BitMap64 | None) -> list[bytes]:
    if whole is None:
        return [varint(0)]
    count = len(whole)
    if count <= _FEW_ENTRIES:
        parts, before = [varint(count)], 0
        for entry in whole:
            parts.append(varint(entry - before))
            before = entry
        return parts
    whole.run_optimize()
    data = whole.serialize()
    return [varint(count), varint(len(data)), data]


def _read_whole(reader: _Reader) -> BitMap64:
    count = reader.varint()
    if count <= _FEW_ENTRIES:
        entries, entry = [], 0
        for _ in range(count):
            entry = reader.step(entry)
            entries.append(entry)
        whole = BitMap64(entries)
    else:
        try:
            whole = BitMap64.deserialize(reader.take(reader.varint()))
        except (ValueError, IndexError) as error:
            raise reader.damage("a bitmap cannot be read") from error
    if len(whole) != count or (whole and whole.max() > _MAX_INT64):
        raise reader.damage("a bitmap has other entries than its count says")
    return whole


def _read_bits(reader: _Reader) -> int:
    length = reader.varint()
    bits = int.from_bytes(reader.take(length), "little") if length <= MAX_BATCH_MESSAGES // 8 else 0
    if bits == 0:
        raise reader.damage("an entry has no unacked bits, or too many")
    return bits


def _sealed(body: bytes) -> bytes:
    version = bytes((FORMAT_VERSION,))
    return version + crc32c(body, crc32c(version)).to_bytes(4, "little") + body


def _opened(data: bytes, what: str) -> _Reader:
    if len(data) < _HEADER_BYTES:
        raise CorruptCursorError(f"A {what} of {len(data)} bytes is too short: read it from another copy.")
    if crc32c(data[_HEADER_BYTES:], crc32c(data[:1])) != int.from_bytes(data[1:_HEADER_BYTES], "little"):
        raise CorruptCursorError(
            f"A {what} of {len(data)} bytes does not match its checksum: read it from another copy."
        )
    if data[0] != FORMAT_VERSION:
        raise FormatVersionError(
            f"A {what} has format version {data[0]}, and this version of pulsar_on_spark reads only {FORMAT_VERSION}: "
            "use the version of pulsar_on_spark that wrote it."
        )
    return _Reader(data, _HEADER_BYTES, what)


class _Reader:
    """Reader of consecutive numbers and bytes; a read past the end raises CorruptCursorError."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, at: int, what: str) -> None:
        self._data = data
        self._at = at
        self._what = what

    def take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        if len(piece) != length:
            raise self.damage("it ends too early")
        self._at += length
        return piece

    def varint(self) -> int:
        number = 0
        for digit in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * digit
            if byte < 0x80:
                return number
        raise self.damage("a number is above 63 bits")

    def step(self, before: int) -> int:
        """Read a number that is encoded as its distance from the number `before`."""
        number = before + self.varint()
        if number > _MAX_INT64:
            raise self.damage("a number is above 63 bits")
        return number

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def damage(self, reason: str) -> CorruptCursorError:
        return CorruptCursorError(
            f"A {self._what} of {len(self._data)} bytes is damaged ({reason}): read it from another copy."
        )
