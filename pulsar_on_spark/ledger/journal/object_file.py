"""A journal file on an object store: its objects by number, and its bytes for readers of a log."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from pulsar_on_spark.ledger.journal.frame_header import ScanPosition
from pulsar_on_spark.ledger.journal.log import FrameNumber
from pulsar_on_spark.ledger.journal.object_format import (
    ObjectHead,
    ObjectKind,
    file_prefix,
    head_bytes,
    object_name,
    parse_head,
    parse_object,
)
from pulsar_on_spark.ledger.journal.object_protocol import BIRTH
from pulsar_on_spark.model.errors import CorruptJournalError, JournalGoneError
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId
from pulsar_on_spark.storage.daemon_calls import start_call
from pulsar_on_spark.storage.identity import Identity
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.objects.contract import Created, Exists
from pulsar_on_spark.storage.segment_objects import translated

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Limit of the most recently read bytes that a reader caches, so that the frames of one object cost one request."""
AHEAD: Final = 32
AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Limits, in objects and bytes, of the read-ahead of a sequential reader, which grows with the objects read in a row.

A writer has several requests in flight, so a reader that reads one object at a time falls behind. After a takeover, all
unsealed objects are read before the first message is delivered.
"""
DELETES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """The objects of a journal file. Methods raise `StoragePathError` if the store gives no certain answer.

    Attributes:
        path: The storage path.
        incarnation: The log's incarnation.
        file: The file's id.
    """

    path: ObjectPath
    incarnation: IncarnationId
    file: JournalFileId

    @property
    def name(self) -> str:
        """The file's name in errors."""
        return f"Journal file {self.path.place}/{file_prefix(self.incarnation, self.file)}"

    @property
    def head_bytes(self) -> int:
        """The length in bytes of each object's head; a longer object is data, or the birth."""
        return head_bytes(self.incarnation, self.file)

    def object_name(self, number: int) -> str:
        """Return an object's name in errors: "Journal object <URL>"."""
        return f"Journal object {self.path.place}/{self._key(number)}"

    def head(self, kind: ObjectKind, number: int, token: str) -> ObjectHead:
        """Return the head of an object that has no frames, with this kind, number and token of its writer."""
        return ObjectHead(kind, self.incarnation, self.file, number, token)

    def create(self, number: int, content: bytes) -> Created | Exists:
        """Create an object, if it is absent. Return `Exists` if another writer's object has the number."""
        with translated():
            return self.path.objects.create(self._key(number), content)

    def create_birth(self, token: str) -> None:
        """Create the file's first object, its birth, with the writer's token.

        Raises:
            FileExistsError: the file exists; no file ever has a second writer.
        """
        content = self.head(ObjectKind.BIRTH, BIRTH, token).encode(self._identity.encode())
        if isinstance(self.create(BIRTH, content), Exists):
            raise FileExistsError(f"{self.name} exists")

    def read_birth(self) -> ObjectHead:
        """Read the file's first object, its birth, which proves that the file exists and the store has this path.

        Raises:
            FileNotFoundError: the path is there, but has no such file.
            WrongPathError, CorruptJournalError, FormatVersionError: the object belongs to another path, or cannot be
                parsed.
        """
        found = self.read(BIRTH)
        if found is None:
            self.path.check()  # raises if the store is another one: the file may still exist then
            raise FileNotFoundError(f"{self.name} is not there")
        head, body = found
        self._identity.require(Identity.decode(bytes(body), self.name), self.name, "check the URL and the bucket")
        return head

    def require_birth(self) -> None:
        """Check that the file's deletion has not begun; called after one of its objects was not found.

        Raises:
            JournalGoneError: the deletion has begun.
        """
        with translated():
            if self.path.objects.head(self._key(BIRTH)) is not None:
                return
        self.path.check()
        raise JournalGoneError(f"{self.name} was deleted: look up where its sealed entries are.")

    def read(self, number: int) -> tuple[ObjectHead, memoryview] | None:
        """Read an object and check all of it; None if it does not exist.

        Returns:
            The object's head and body.

        Raises:
            CorruptJournalError, FormatVersionError: the object is damaged, or a newer version wrote the object.
        """
        with translated():
            fetched = self.path.objects.fetch(self._key(number))
        if fetched is None:
            return None
        name = self.object_name(number)
        head, body = parse_object(fetched.content, name)
        return self._required(head, number, name), body

    def read_head(self, number: int) -> ObjectHead | None:
        """Read only an object's head; None if the object does not exist (raises as `read`)."""
        with translated():
            content = self.path.objects.fetch_range(self._key(number), 0, self.head_bytes)
        if content is None:
            return None
        name = self.object_name(number)
        return self._required(parse_head(content, name)[0], number, name)

    def sizes(self, behind: int | None = None) -> Mapping[int, int]:
        """Return the size in bytes of each object of the file, by number.

        Only objects with numbers above `behind` are listed; None lists all.
        """
        prefix = file_prefix(self.incarnation, self.file)
        after = "" if behind is None else self._key(behind)
        with translated():
            listed = [(each.key[len(prefix) + 1 :], each.size) for each in self.path.objects.list_after(prefix, after)]
        return {int(name): size for name, size in listed if name.isdecimal()}

    def data_sizes(self) -> list[int]:
        """List the sizes in bytes of the data objects' bodies, up to the first gap or fence.

        Raises:
            JournalGoneError: the file was deleted.
        """
        sizes = self.sizes()
        if BIRTH not in sizes:
            self.require_birth()
        return self._bodies(sizes, BIRTH)

    def data_sizes_behind(self, number: int) -> list[int]:
        """List the sizes in bytes of the bodies after data object `number`, up to the first gap or fence."""
        return self._bodies(self.sizes(number), number)

    def _bodies(self, sizes: Mapping[int, int], behind: int) -> list[int]:
        found: list[int] = []
        while (size := sizes.get(behind + len(found) + 1, 0)) > self.head_bytes:
            found.append(size - self.head_bytes)
        return found

    def delete(self) -> int:
        """Delete the file: its birth first, then its data, but never a fence. Return the number of deleted objects."""
        sizes = self.sizes()
        data = [number for number, size in sizes.items() if number != BIRTH and size != self.head_bytes]
        if BIRTH in sizes:
            self._delete(BIRTH)
        with ThreadPoolExecutor(DELETES_AT_ONCE, thread_name_prefix="journal-delete") as pool:
            for _ in pool.map(self._delete, data):
                pass
        return len(data) + (BIRTH in sizes)

    def _delete(self, number: int) -> None:
        with translated():
            self.path.objects.delete(self._key(number))

    @property
    def _identity(self) -> Identity:
        return Identity(self.path.cluster_id, self.path.path_id)

    def _key(self, number: int) -> str:
        return f"{file_prefix(self.incarnation, self.file)}/{object_name(number)}"

    def _required(self, head: ObjectHead, number: int, name: str) -> ObjectHead:
        if (head.incarnation, head.file, head.number) != (self.incarnation, self.file, number):
            raise CorruptJournalError(
                f"{name} has the head of object {head.number} of file {head.file} of {head.incarnation}: read another "
                "copy."
            )
        return head


class ObjectBytes:
    """The bytes of a file on an object store (`JournalBytes`): the bodies of its prefix, one after another.

    Each object is read as a whole and checked. The most recently read objects are cached, and the next objects are read
    ahead. The prefix may grow until there is a fence or the file is being deleted.
    """

    def __init__(self, file: ObjectFile) -> None:
        """Open the file.

        Raises:
            FileNotFoundError: the path is there, but has no such file.
            StorageError: the path cannot be reached, or the file's birth is damaged.
        """
        self._file = file
        self._token = file.read_birth().token
        self._ends = [0]
        """The offset of the end of each body, by the object's number."""
        self._is_listed = False
        self._has_ended = False
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._ahead: dict[int, Future[tuple[ObjectHead, memoryview] | None]] = {}
        self._last_read = -1
        self._in_a_row = 0

    @property
    def identity(self) -> tuple[int, int]:
        """The token of the file's writer, as two numbers."""
        half = len(self._token) // 2
        return int(self._token[:half], 16), int(self._token[half:], 16)

    def size(self) -> int:
        """Return the size of the prefix in bytes. The first call lists the objects; later calls look for new ones."""
        if not self._is_listed:
            self._add(self._file.data_sizes())
            self._is_listed = True
        elif not self._has_ended and self._look_for_next() and self._look_for_next():
            self._add(self._file.data_sizes_behind(len(self._ends) - 1))
        return self._ends[-1]

    def _add(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self._ends.append(self._ends[-1] + size)

    def position_before(self, number: FrameNumber) -> ScanPosition | None:
        """Search the heads for the last object that begins at or before the frame; None for the first object."""
        if not self._is_listed:
            self.size()
        low, high, found = BIRTH + 2, len(self._ends) - 1, None
        while low <= high:
            middle = (low + high) // 2
            head = self._head(middle)
            if head.first.next_number <= number:
                low, found = middle + 1, ScanPosition(self._ends[middle - 1], head.first)
            else:
                high = middle - 1
        return found

    def _head(self, number: int) -> ObjectHead:
        head = self._file.read_head(number)
        if head is None:
            raise self._gone(number)
        self._check(head)
        return head

    def _gone(self, number: int) -> JournalGoneError:
        self._file.require_birth()
        return JournalGoneError(f"{self._file.object_name(number)} is missing from its file: read another copy.")

    def _look_for_next(self) -> bool:
        """Read the object after the last one. Return True if it exists and has data."""
        number = len(self._ends)
        found = self._file.read(number)
        if found is None:
            self._file.require_birth()
            return False
        head, body = found
        if head.kind is ObjectKind.FENCE:
            self._has_ended = True
            return False
        self._check(head)
        self._add([len(body)])
        self._keep(number, body)
        return True

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` with the bodies' bytes from `offset` on, and return their number."""
        if offset + len(target) > self._ends[-1]:
            self.size()
        filled, number = 0, bisect_right(self._ends, offset)
        while filled < len(target) and number < len(self._ends):
            body = self._body(number)
            part = body[offset + filled - self._ends[number - 1] :][: len(target) - filled]
            target[filled : filled + len(part)] = part
            filled += len(part)
            number += 1
        return filled

    def drop_cached_bytes(self, end: int) -> None:
        """Do nothing, because few bytes are kept."""

    def close(self) -> None:
        """Drop the cached bytes; requests in flight end by themselves."""
        self._kept.clear()
        self._ahead.clear()

    def _body(self, number: int) -> memoryview:
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept
        found = self._read(number)
        if found is None:
            raise self._gone(number)
        head, body = found
        self._check(head)
        if len(body) != self._size_of(number):
            raise CorruptJournalError(f"{self._file.object_name(number)} has changed: read another copy.")
        self._keep(number, body)
        return body

    def _read(self, number: int) -> tuple[ObjectHead, memoryview] | None:
        """Read an object; None if it does not exist.

        If the previous read was of the object before it, also begin to read the following objects.
        """
        self._in_a_row = self._in_a_row + 1 if number == self._last_read + 1 else 0
        self._last_read = number
        begun = self._ahead.pop(number, None)
        if not self._in_a_row:
            self._ahead.clear()
        elif number > BIRTH + 1:
            self._read_ahead(number + 1)
        return self._file.read(number) if begun is None else begun.result()

    def _read_ahead(self, number: int) -> None:
        held = sum(self._size_of(ahead) for ahead in self._ahead)
        most = min(self._in_a_row, AHEAD)
        while number < len(self._ends) and len(self._ahead) < most and held < AHEAD_BYTES:
            if number not in self._ahead and number not in self._kept:
                self._ahead[number] = start_call(partial(self._file.read, number), "journal-object")
                held += self._size_of(number)
            number += 1

    def _size_of(self, number: int) -> int:
        return self._ends[number] - self._ends[number - 1]

    def _check(self, head: ObjectHead) -> None:
        if head.kind is not ObjectKind.DATA or head.token != self._token:
            raise CorruptJournalError(
                f"{self._file.object_name(head.number)} was not written by its file's writer: read another copy."
            )

    def _keep(self, number: int, body: memoryview) -> None:
        self._kept[number] = body
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)
