"""Ids and positions: plain frozen values with Pulsar's order and Pulsar's serialized form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
TopicId = NewType("TopicId", str)
"""32 hex digits, new at each creation: a re-created topic is another topic."""
FileId = NewType("FileId", str)
"""`<write id>-<number>`: the write id is in the name so that a listing can nominate garbage."""
WriteId = NewType("WriteId", str)
"""32 hex digits, fresh for each construction of a writer."""
PathId = NewType("PathId", int)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a copy of a segment file on a storage path, used for no other content later.

    Attributes:
        file_id: The segment file.
        generation: `<write id>-<8 hex digits>` of the repair that made the copy; "" for a copy of the file's writer
            (docs/adr/0021).
    """

    file_id: FileId
    generation: str = ""

    @property
    def write_id(self) -> WriteId:
        """The write whose verdict decides about the copy while no record names it."""
        return WriteId((self.generation or self.file_id).partition("-")[0])

    def __str__(self) -> str:
        return f"{self.file_id}.{self.generation}" if self.generation else self.file_id


IncarnationId = NewType("IncarnationId", str)
"""A run of a broker; its log is the incarnation's log."""
JournalFileId = NewType("JournalFileId", str)
"""The name of a journal file within its incarnation; a file only ever has one writer."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of the next entry to read.

    Ledger ids start at 1, so `EARLIEST` (0, 0) is before every entry. An entry is never split, hence no batch index.
    """

    ledger: LedgerId
    entry: EntryId

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(LedgerId(0), EntryId(0))


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """(ledger, entry, partition, batch index); partition and batch index are -1 where absent."""

    ledger: LedgerId
    entry: EntryId
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.partition}:{self.batch_index}"

    def serialize(self) -> bytes:
        """The protobuf `MessageIdData` bytes of Pulsar's clients: fields at their default are left out."""
        parts = [b"\x08", varint(self.ledger), b"\x10", varint(self.entry)]
        if self.partition >= 0:
            parts += [b"\x18", varint(self.partition)]
        if self.batch_index >= 0:
            parts += [b"\x20", varint(self.batch_index)]
        return b"".join(parts)


def varint(number: int) -> bytes:
    """Protobuf's base-128 encoding of a non-negative number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
