"""The bytes of a journal file's objects on an object store.

    <storage path>/journal/<incarnation>/<file>/0000000000    the birth; its body is the storage path's identity
                                               /0000000001    data; the bodies, one after another, are a journal file
                                               /...           as on a disk: its header, and then whole frames
                                               /000000000k    perhaps a fence, without a body

An object begins with a head that names the log, the file and itself, and has the token of its writer; all heads of a
file have the same length. Everything is little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crc32c import crc32c

from pulsar_on_spark.ledger.journal.codec_batch import padded
from pulsar_on_spark.ledger.journal.files import JOURNAL, legal_name
from pulsar_on_spark.ledger.journal.frame_header import ChainPoint
from pulsar_on_spark.ledger.journal.log import NO_FRAME, FrameNumber
from pulsar_on_spark.ledger.journal.object_protocol import BIRTH
from pulsar_on_spark.model.errors import CorruptJournalError, FormatVersionError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId

OBJECT_FORMAT: Final = 1
TOKEN_BYTES: Final = 16

_MAGIC: Final = b"PULSARPO"
_HEAD: Final = struct.Struct("<8sHHBBBx16sIIQqIIII")
"""Magic, format version, length of the head, kind, lengths of the incarnation's id and the file's id, the writer's
token, number, number up to which all objects were confirmed, number of the first frame, LAC, CRC of the frame before
the first one, length of the body, CRC of the body, CRC of the rest of the head. Both ids follow, and zeros up to a
multiple of 8.

Magic, format version, head length and the position of the last CRC stay in every version."""
_CRC_AT: Final = _HEAD.size - 4


_NOWHERE: Final = ChainPoint(0, 0)


class ObjectKind(IntEnum):
    """The kind of an object. A new kind is a new format version."""

    BIRTH = 1
    DATA = 2
    FENCE = 3


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object's head.

    Attributes:
        kind: Its kind.
        incarnation: The log's incarnation.
        file: The file's id.
        number: The object's number.
        token: Its writer's token, in hexadecimal; the same in all objects of the file except fences.
        first: For data, the position of its first frame in the chain of the log's frames.
        lac: For data, the LAC that its last frame names.
        confirmed: For data, the number up to which all objects were confirmed when this object was made.
    """

    kind: ObjectKind
    incarnation: IncarnationId
    file: JournalFileId
    number: int
    token: str
    first: ChainPoint = _NOWHERE
    lac: FrameNumber = NO_FRAME
    confirmed: int = BIRTH

    def encode(self, *body: bytes | bytearray | memoryview) -> bytes:
        """Return the object's bytes, in one copy of the body's parts.

        Raises:
            InvalidArgumentError: an id is not fit for a name.
        """
        ids = (legal_name(self.incarnation).encode(), legal_name(self.file).encode())
        body_crc = 0
        for part in body:
            body_crc = crc32c(part, body_crc)
        fixed = _HEAD.pack(
            *(_MAGIC, OBJECT_FORMAT, head_bytes(self.incarnation, self.file), self.kind, *map(len, ids)),
            *(bytes.fromhex(self.token), self.number, self.confirmed, self.first.next_number, self.lac),
            *(self.first.crc, sum(memoryview(part).nbytes for part in body), body_crc, 0),
        )
        rest = b"".join(ids).ljust(head_bytes(self.incarnation, self.file) - _HEAD.size, b"\0")
        return b"".join((fixed[:_CRC_AT], _head_crc(fixed + rest).to_bytes(4, "little"), rest, *body))


def head_bytes(incarnation: IncarnationId, file: JournalFileId) -> int:
    """Return the length in bytes of the head of each object of a file."""
    return padded(_HEAD.size + len(incarnation) + len(file))


def incarnation_prefix(incarnation: IncarnationId) -> str:
    """Return the prefix of the keys of an incarnation's objects, relative to the storage path.

    Raises:
        InvalidArgumentError: the id is not fit for a name.
    """
    return f"{JOURNAL}/{legal_name(incarnation)}"


def file_prefix(incarnation: IncarnationId, file: JournalFileId) -> str:
    """Return the prefix of the keys of a file's objects (raises as `incarnation_prefix`)."""
    return f"{incarnation_prefix(incarnation)}/{legal_name(file)}"


def object_name(number: int) -> str:
    """Return the last part of an object's key: its number as ten digits."""
    return f"{number:010d}"


def parse_head(content: bytes | memoryview, name: str) -> tuple[ObjectHead, int, int]:
    """Parse an object's head.

    Args:
        content: The object's first bytes, at least the head's.
        name: The object's name in errors: "Journal object <URL>".

    Returns:
        The head, the length of the body in bytes, and the body's CRC.

    Raises:
        CorruptJournalError: the bytes are not a head that a writer makes.
        FormatVersionError: a newer version wrote them.
    """
    view = memoryview(content)
    size_bytes = int.from_bytes(view[10:12], "little")
    if bytes(view[: len(_MAGIC)]) != _MAGIC or not _HEAD.size <= size_bytes <= len(view):
        raise CorruptJournalError(f"{name} is not a journal object: read another copy.")
    head = bytes(view[:size_bytes])
    if _head_crc(head) != int.from_bytes(head[_CRC_AT : _HEAD.size], "little"):
        raise CorruptJournalError(f"{name} has a head that fails its checksum: read another copy.")
    _, version, _, kind, incarnation_bytes, file_bytes, token, *numbers = _HEAD.unpack_from(head)
    if version > OBJECT_FORMAT:
        raise FormatVersionError(
            f"{name} has journal object format {version}, this pulsar_on_spark reads up to {OBJECT_FORMAT}: upgrade it."
        )
    number, confirmed, first_frame, lac, seed, body_bytes, body_crc, _ = numbers
    ids = head[_HEAD.size :].decode("latin-1")
    incarnation = IncarnationId(ids[:incarnation_bytes])
    file = JournalFileId(ids[incarnation_bytes : incarnation_bytes + file_bytes])
    if kind not in set(ObjectKind) or head_bytes(incarnation, file) != size_bytes:
        raise CorruptJournalError(f"{name} has a head that no writer makes: read another copy.")
    parsed = ObjectHead(
        ObjectKind(kind), incarnation, file, number, token.hex(), ChainPoint(first_frame, seed), lac, confirmed
    )
    return parsed, body_bytes, body_crc


def parse_object(content: bytes, name: str) -> tuple[ObjectHead, memoryview]:
    """Parse a whole object and check its body (arguments and errors as `parse_head`). Return the head and the body."""
    head, body_bytes, body_crc = parse_head(content, name)
    body = memoryview(content)[head_bytes(head.incarnation, head.file) :]
    if len(body) != body_bytes or crc32c(body) != body_crc:
        raise CorruptJournalError(f"{name} has a body that fails its checksum: read another copy.")
    return head, body


def _head_crc(head: bytes) -> int:
    return crc32c(head[_HEAD.size :], crc32c(head[:_CRC_AT]))
