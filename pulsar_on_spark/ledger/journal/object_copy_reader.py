"""Reading one copy of a journal file on an object store for a recovery: the IO for the decisions of `ObjectReader`."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.ledger.journal.codec_encode import Payload
from pulsar_on_spark.ledger.journal.codec_scan import CleanEnd, FrameScanner
from pulsar_on_spark.ledger.journal.copy_protocol import FenceAnswer, FenceFirst, ReadAnswer, ReadFrames, ScanEnd
from pulsar_on_spark.ledger.journal.files import read_file_header
from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.frames import Frame
from pulsar_on_spark.ledger.journal.journal_bytes import BytesInMemory
from pulsar_on_spark.ledger.journal.log import NO_FRAME, Copy, FrameFacts, FrameNumber
from pulsar_on_spark.ledger.journal.object_file import ObjectFile
from pulsar_on_spark.ledger.journal.object_format import TOKEN_BYTES, ObjectHead, ObjectKind, parse_object
from pulsar_on_spark.ledger.journal.object_protocol import (
    BIRTH,
    BirthChecked,
    CheckBirth,
    FencePut,
    FenceResult,
    Look,
    Looked,
    ObjectReadEffect,
    ObjectReader,
    ObjectReadEvent,
    ObjectsScanned,
    PutFence,
    ScanObjects,
)
from pulsar_on_spark.model.errors import CorruptJournalError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects.contract import Created

READ_BYTES: Final = 8 * 1024 * 1024
"""Approximate limit of the bytes of the frames that one answer covers."""
_KEPT_BODIES: Final = 2
"""Limit of the objects whose bodies are cached while their frames are written back."""


@dataclass(frozen=True, slots=True)
class PlacedObjectFrame:
    """A frame at a known position in an object.

    Its bytes are read, and verified again, when they are used. Thread-safe.

    Attributes:
        file: The file.
        number: The object's number.
        position: The frame's position in the object's body.
        size_bytes: The frame's size.
    """

    file: ObjectCopyFile
    number: int
    position: ScanPosition
    size_bytes: int

    @property
    def buffers(self) -> Sequence[Payload]:
        """The frame's bytes.

        Raises:
            StorageError: the object cannot be read, or has changed.
        """
        return (self.file.frame_at(self.number, self.position),)


class ObjectCopyFile:
    """A copy that a recovery fences and reads. One thread uses it; its frames serve any thread.

    Args:
        path: The storage path.
        incarnation: The log's incarnation.
        copy: The file.
        progress: Called with the number of bytes read since the last call.

    Attributes:
        placed: The frames that were read.
        problem: The reason why the last request got no complete answer; a text for operators.
    """

    def __init__(
        self, path: ObjectPath, incarnation: IncarnationId, copy: Copy, progress: Callable[[int], None]
    ) -> None:
        self._file = ObjectFile(path, incarnation, JournalFileId(copy.file))
        self._progress = progress
        self._core = ObjectReader()
        self._token = ""
        self._sizes: Mapping[int, int] = {}
        self._heads: dict[int, ObjectHead] = {}
        self._bodies: OrderedDict[int, memoryview] = OrderedDict()
        self._reading = threading.Lock()
        self.placed: dict[FrameNumber, PlacedObjectFrame] = {}
        self.problem = ""

    def answer(self, request: FenceFirst | ReadFrames) -> FenceAnswer | ReadAnswer:
        """Serve a request and return its answer."""
        event: ObjectReadEvent = request
        while True:
            (effect,) = self._core.handle(event)
            if isinstance(effect, FenceAnswer | ReadAnswer):
                return effect
            event = self._serve(effect)

    def close(self) -> None:
        """Drop the cached bodies of objects."""
        with self._reading:
            self._bodies.clear()

    def frame_at(self, number: int, position: ScanPosition) -> bytes:
        """Read the frame at a position in an object, and verify it again (raises as `PlacedObjectFrame.buffers`)."""
        name = self._file.object_name(number)
        found = FrameScanner(BytesInMemory(self._body(number)), position, name).next_frame()
        if isinstance(found, Frame):
            return bytes(found.data)
        raise CorruptJournalError(f"{name} has changed at byte {position.offset}: check its store.")

    def _serve(self, effect: ObjectReadEffect) -> ObjectReadEvent:
        match effect:
            case CheckBirth():
                return BirthChecked(self._has_birth())
            case Look():
                return self._look()
            case PutFence(number):
                return FencePut(self._put_fence(number))
            case ScanObjects(start, limit, end):
                try:
                    return self._scan_heads(end) if limit == 0 else self._scan_frames(start, limit, end)
                except (OSError, PulsarpyError) as error:
                    self.problem = str(error)
                    return ObjectsScanned(None, (), ScanEnd.DAMAGED)
            case _:
                raise AssertionError(f"no branch serves {effect}")

    # -- fencing -------------------------------------------------------------------------------------------------------

    def _has_birth(self) -> bool:
        try:
            self._token = self._file.read_birth().token
        except (OSError, PulsarpyError) as error:
            self.problem = str(error)
            return False
        return True

    def _look(self) -> Looked:
        """List the objects. If the object that ends the prefix has no data, check that it is a fence."""
        try:
            self._sizes = sizes = self._file.sizes()
            end = BIRTH + 1
            while sizes.get(end, 0) > self._file.head_bytes:
                end += 1
            if end in sizes:
                head = self._file.read_head(end)
                if head is None or head.kind is not ObjectKind.FENCE:
                    raise CorruptJournalError(f"{self._file.object_name(end)} is neither data nor a fence.")
        except (OSError, PulsarpyError) as error:
            self.problem = str(error)
            return Looked(None, has_fence=False, last=BIRTH)
        self._progress(0)
        return Looked(end, end in sizes, max(sizes, default=BIRTH))

    def _put_fence(self, number: int) -> FenceResult:
        token = secrets.token_hex(TOKEN_BYTES)
        try:
            written = self._file.create(number, self._file.head(ObjectKind.FENCE, number, token).encode())
            if isinstance(written, Created):
                return FenceResult.DONE
            head, _ = parse_object(written.content, self._file.object_name(number))
        except (OSError, PulsarpyError) as error:
            self.problem = f"{self._file.name} cannot be fenced: {error}"
            return FenceResult.FAILED
        return FenceResult.DONE if head.kind is ObjectKind.FENCE else FenceResult.TAKEN

    # -- scanning ------------------------------------------------------------------------------------------------------

    def _scan_heads(self, end: int) -> ObjectsScanned:
        """Return the highest LACs in the prefix and behind it, from the last readable heads: LACs grow along a file."""
        lac, lac_behind, confirmed = NO_FRAME, NO_FRAME, BIRTH
        behind = self._last_head(number for number in sorted(self._sizes, reverse=True) if number > end)
        if behind is not None:
            lac_behind, confirmed = behind.lac, behind.confirmed
        last = self._last_head(range(end - 1, BIRTH, -1))
        if last is not None:
            lac = last.lac
        first = self._last_head(range(BIRTH + 1, min(end, BIRTH + 2)))
        first_frame = None if first is None else first.first.next_number
        return ObjectsScanned(first_frame, (), ScanEnd.CLEAN, lac, lac_behind, confirmed)

    def _last_head(self, numbers: Iterable[int]) -> ObjectHead | None:
        """Return the head of the first of these objects that is intact and has data; None if there is none."""
        for number in numbers:
            try:
                head = self._head(number)
            except CorruptJournalError as error:
                self.problem = str(error)
                continue
            if head.kind is ObjectKind.DATA:
                return head
        return None

    def _scan_frames(self, start: FrameNumber, limit: int, end: int) -> ObjectsScanned:
        heads = self._scan_heads(end)
        number = end - 1
        while number > BIRTH and self._head(number).first.next_number > start:
            number -= 1
        facts: list[FrameFacts] = []
        read_bytes, chain = 0, None
        for each in range(number, end) if number > BIRTH else ():
            if chain not in (None, self._head(each).first):
                raise CorruptJournalError(f"{self._file.object_name(each)} does not continue the object before it.")
            for frame, position in self._frames_of(each):
                chain = frame.header.after
                if frame.header.number < start:
                    continue
                if len(facts) == limit or read_bytes >= READ_BYTES:
                    return self._scanned(heads, facts, ScanEnd.LIMIT)
                header = frame.header
                read_bytes += header.size_bytes
                facts.append(FrameFacts(header.number, header.kind, header.lac))
                self.placed[header.number] = PlacedObjectFrame(self, each, position, header.size_bytes)
        return self._scanned(heads, facts, ScanEnd.CLEAN)

    def _scanned(self, heads: ObjectsScanned, facts: Sequence[FrameFacts], end: ScanEnd) -> ObjectsScanned:
        return ObjectsScanned(heads.first, tuple(facts), end, heads.lac, heads.lac_behind, heads.confirmed_behind)

    def _frames_of(self, number: int) -> Iterator[tuple[Frame, ScanPosition]]:
        """Yield the frames of an object, each with its position.

        Raises:
            CorruptJournalError: the frames do not fill the object, or do not continue each other.
        """
        name, head = self._file.object_name(number), self._head(number)
        body = BytesInMemory(self._body(number))
        start = ScanPosition(0, head.first)
        if number == BIRTH + 1:
            _, start = read_file_header(body, name)
        if start.chain != head.first:
            raise CorruptJournalError(f"{name} begins with another frame than its head names: read another copy.")
        scanner = FrameScanner(body, start, name)
        while True:
            position = scanner.position
            found = scanner.next_frame()
            if isinstance(found, CleanEnd):
                break
            if not isinstance(found, Frame):
                raise CorruptJournalError(found.reason)
            yield found, position
        self._progress(body.size())

    def _head(self, number: int) -> ObjectHead:
        head = self._heads.get(number)
        if head is None:
            head = self._file.read_head(number)
            if head is None:
                raise self._gone(number)
            if head.kind is ObjectKind.DATA and head.token != self._token:
                raise CorruptJournalError(f"{self._file.object_name(number)} was not written by its file's writer.")
            self._heads[number] = head
        return head

    def _body(self, number: int) -> memoryview:
        with self._reading:
            body = self._bodies.get(number)
            if body is None:
                found = self._file.read(number)
                if found is None:
                    raise self._gone(number)
                body = self._bodies[number] = found[1]
                if len(self._bodies) > _KEPT_BODIES:
                    self._bodies.popitem(last=False)
            return body

    def _gone(self, number: int) -> CorruptJournalError:
        return CorruptJournalError(f"{self._file.object_name(number)} was deleted during the recovery.")
