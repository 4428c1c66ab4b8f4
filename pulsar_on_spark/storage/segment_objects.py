"""Copies of segment files on an object store: uploaded as a stream, read in ranges that are fetched ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from pulsar_on_spark.model.errors import (
    NoAccessError,
    ObjectsForbiddenError,
    ObjectsRefusedError,
    ObjectsUnreachableError,
    SegmentGoneError,
    StorageError,
    StoragePathError,
    UnsyncedFolderError,
)
from pulsar_on_spark.storage.daemon_calls import start_call
from pulsar_on_spark.storage.objects.contract import ObjectStore

GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes to fetch at once: the fixed cost of a request is as high as the cost of some megabytes."""
IN_FLIGHT: Final = 8
IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Maximum number (`IN_FLIGHT`) and total bytes (`IN_FLIGHT_BYTES`) of the ranges that a source fetches ahead."""

Check = Callable[[], None]
"""Function that raises StoragePathError if the URL is not the storage path."""


class ObjectSink:
    """A copy that is being uploaded. It exists only when it is complete.

    Args:
        objects: The path's objects.
        key: The copy's key.
        sidecar_key: The key of its sidecar.
        check: Checks the storage path once the copy is complete.
    """

    is_readable = False

    def __init__(self, objects: ObjectStore, key: str, sidecar_key: str, check: Check) -> None:
        self._objects = objects
        self._check = check
        self._key = key
        self._sidecar_key = sidecar_key
        with translated():
            self._upload = objects.upload(key)
        self._is_sealed = False

    def write(self, content: bytes) -> None:
        """Append to the upload."""
        with translated():
            self._upload.write(content)

    def open_written(self) -> ObjectSource:
        """Raise `StoragePathError`: the copy cannot be read before it is complete."""
        raise StoragePathError(f"Object {self._key} is being written: read it when it is complete.")

    def seal(self, sidecar: bytes | None) -> None:
        """Upload the sidecar, unless it is None, and then complete the upload."""
        with translated():
            if sidecar is not None:
                upload = self._objects.upload(self._sidecar_key)
                upload.write(sidecar)
                upload.finish()
            self._upload.finish()
        self._is_sealed = True
        self._check()

    def close(self) -> None:
        """Do nothing: a finished upload holds no resources."""

    def discard(self) -> None:
        """Abandon the upload, and delete its objects. A late request may still create an object, which is garbage."""
        if not self._is_sealed:
            self._upload.abandon()
        for key in (self._key, self._sidecar_key):
            with suppress(StorageError):
                self._objects.delete(key)


class ObjectSource:
    """A copy that is read in ranges.

    Args:
        objects: The path's objects.
        key: The copy's key.
        sidecar_key: The key of its sidecar.
        location: The copy's URL, for messages.
        check: Checks the storage path after an object was not found.
    """

    group_bytes = GROUP_BYTES

    def __init__(self, objects: ObjectStore, key: str, sidecar_key: str, location: str, check: Check) -> None:
        self._objects = objects
        self._key = key
        self._sidecar_key = sidecar_key
        self._check = check
        self._expected: deque[tuple[int, int]] = deque()
        self._fetching: deque[tuple[tuple[int, int], Future[bytes | memoryview | None]]] = deque()
        self.location = location

    def size_bytes(self) -> None:
        """Return None, because the length would cost a request."""

    def sidecar(self) -> bytes:
        """Return the content of the sidecar object."""
        with translated():
            fetched = self._objects.fetch(self._sidecar_key)
        if fetched is None:
            raise self._gone("Sidecar of segment file")
        return fetched.content

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Begin to fetch the ranges in threads, as far as the limits allow."""
        self._forget()
        self._expected.extend(ranges)
        self._fetch_ahead()

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from the range that is fetched ahead, or fetch the bytes now; return the number of bytes."""
        wanted = (offset, offset + len(target))
        if self._fetching and self._fetching[0][0] == wanted:
            _, fetching = self._fetching.popleft()
            with translated():
                content = fetching.result()
            self._fetch_ahead()
        else:
            with translated():
                content = self._objects.fetch_range(self._key, *wanted)
        if content is None:
            raise self._gone("Segment file")
        target[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Drop the ranges that are fetched ahead."""
        self._forget()

    def _fetch_ahead(self) -> None:
        while self._expected and len(self._fetching) < IN_FLIGHT:
            start, end = self._expected[0]
            held = sum(until - begin for (begin, until), _ in self._fetching)
            if self._fetching and held + end - start > IN_FLIGHT_BYTES:
                return
            fetching = start_call(partial(self._objects.fetch_range, self._key, start, end), "segment-range")
            self._fetching.append((self._expected.popleft(), fetching))

    def _forget(self) -> None:
        self._expected.clear()
        self._fetching.clear()

    def _gone(self, what: str) -> SegmentGoneError:
        """Return the error for an object that was not found, after a look at the storage path.

        Raises:
            StoragePathError: the store is another one: the object may still exist.
        """
        self._check()
        return SegmentGoneError(f"{what} {self.location} is missing.")


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of an object store in the context into StoragePathError, for a path that cannot be used now."""
    try:
        yield
    except ObjectsForbiddenError as error:
        raise NoAccessError(str(error)) from error
    except (ObjectsUnreachableError, ObjectsRefusedError, UnsyncedFolderError) as error:
        raise StoragePathError(str(error)) from error
