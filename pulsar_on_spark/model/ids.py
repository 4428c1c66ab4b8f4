"""Ids and positions: plain frozen values with Pulsar's order and Pulsar's serialized form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
TopicId = NewType("TopicId", str)
"""Id of a topic: 32 hex digits, new at each creation, because a re-created topic is another topic."""
FileId = NewType("FileId", str)
"""Id of a segment file: `<write id>-<number>`. In a listing, the write id shows which files may be garbage."""
WriteId = NewType("WriteId", str)
"""Id of a write: 32 hex digits, new for each writer."""
PathId = NewType("PathId", int)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a copy of a segment file on a storage path. Each name is used only once.

    Attributes:
        file_id: The segment file.
        generation: `<write id>-<8 hex digits>` of the repair that made the copy; "" for a copy of the file's writer
            (docs/adr/0021).
    """

    file_id: FileId
    generation: str = ""

    @property
    def write_id(self) -> WriteId:
        """The id of the write that made the copy; until a record names the copy, only this write can commit it."""
        return WriteId((self.generation or self.file_id).partition("-")[0])

    def __str__(self) -> str:
        return f"{self.file_id}.{self.generation}" if self.generation else self.file_id


IncarnationId = NewType("IncarnationId", str)
"""Id of an incarnation, which is one run of a broker and writes one log."""
JournalFileId = NewType("JournalFileId", str)
"""The name of a journal file within its incarnation; a file never has a second writer."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of the next entry to read.

    Ledger ids start at 1, so `EARLIEST` (0, 0) is before every entry. An entry is never split, so there is no batch
    index.
    """

    ledger: LedgerId
    entry: EntryId

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(LedgerId(0), EntryId(0))


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """A message id: (ledger, entry, partition, batch index). Partition and batch index are -1 if absent."""

    ledger: LedgerId
    entry: EntryId
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.partition}:{self.batch_index}"

    def serialize(self) -> bytes:
        """Return the protobuf `MessageIdData` as Pulsar's clients encode it, without fields that have their default."""
        parts = [b"\x08", varint(self.ledger), b"\x10", varint(self.entry)]
        if self.partition >= 0:
            parts += [b"\x18", varint(self.partition)]
        if self.batch_index >= 0:
            parts += [b"\x20", varint(self.batch_index)]
        return b"".join(parts)


def varint(number: int) -> bytes:
    """Return the bytes of a non-negative number in protobuf's base-128 encoding."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
