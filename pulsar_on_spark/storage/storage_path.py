"""The contract of a storage path: a directory or URL with an identity, which keeps copies of segment files.

It corresponds to a bookie of BookKeeper. `LocalPath` is a directory of this host, `BoundedPath` a directory with a time
limit for each call, and `ObjectPath` a prefix of an object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.root_place import RootPlace


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file or object under `segments/`: a segment or a sidecar, complete or still being written.

    Attributes:
        name: The name of the copy that the file belongs to.
        location: The file's path or the object's key, for its deletion and for messages.
        age_s: The time since its last write by the wall clock, in seconds. It may make the file a candidate for
            garbage collection, but must never decide its deletion.
        size_bytes: The file's size.
        is_sidecar: True for the checksums of a segment file with many batches.
        is_tmp: True for a file that is still being written, or was left unfinished.
    """

    name: SegmentName
    location: str
    age_s: float
    size_bytes: int
    is_sidecar: bool
    is_tmp: bool


class DiskSpace(NamedTuple):
    """The size of a path's file system, and the free space on it, in bytes."""

    total: int
    free: int


class SegmentSink(Protocol):
    """A copy of a segment file that is being written. Methods raise `OSError` or `StorageError`.

    Not thread-safe, except that any thread may call `open_written` while no other method runs.
    """

    @property
    def is_readable(self) -> bool:
        """True if the bytes that were written can be read back before the copy is complete."""

    def write(self, content: bytes) -> None:
        """Append bytes to the copy."""

    def open_written(self) -> SegmentSource:
        """Return the copy with the bytes written so far, open for reading; only if `is_readable`."""

    def seal(self, sidecar: bytes | None) -> None:
        """Make first the sidecar, then the copy durable and visible under its name; `sidecar` is None without one."""

    def close(self) -> None:
        """Release the resources of the copy, before or after `seal`."""

    def discard(self) -> None:
        """Close the copy and try to delete its files or objects."""


class SegmentSource(Protocol):
    """A copy of a segment file that is open for reading. Not thread-safe.

    Methods raise `SegmentGoneError` if the path can be reached and has no such copy, and `StoragePathError` if the copy
    cannot be read now.
    """

    @property
    def location(self) -> str:
        """The copy's path or URL, for messages."""

    @property
    def group_bytes(self) -> int:
        """The number of bytes to read at once: enough to amortize the fixed cost of a read."""

    def size_bytes(self) -> int | None:
        """Return the length in bytes; None on an object store, where a read finds a wrong length without this."""

    def sidecar(self) -> bytes:
        """Return the content of the copy's sidecar."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce the ranges [start, end) that are read next, in this order, so that they can be read ahead."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; returns the number of bytes read, lower than its size only at the copy's end."""

    def close(self) -> None:
        """Close the copy."""


class StoragePath(Protocol):
    """A storage path as recorded in the root's metadata. Picklable; holds no open file and no credentials."""

    @property
    def path_id(self) -> PathId:
        """The path's id in the root."""

    @property
    def place(self) -> RootPlace:
        """The path's directory or URL."""

    @property
    def is_elsewhere(self) -> bool:
        """True if the path is on a disk of another host, and cannot be read from this one."""

    @property
    def cluster_id(self) -> str:
        """The id of the root's cluster, by which a path belongs to a root."""

    @property
    def label(self) -> str:
        """The label of the path's rack; "" without a label."""

    @property
    def weight(self) -> int:
        """The path's share of new files: its free bytes when they were last measured."""

    @property
    def is_given_up(self) -> bool:
        """True if an operator declared the path lost, so that copies which cannot be reached count as gone."""

    def create(self, files: FileOps = OS_FILES, mode: int | None = None) -> None:
        """Make the path and its identity durably; no effect if this path exists there already.

        Args:
            files: The operating system, for a path in a directory.
            mode: Permissions for a directory, which its content inherits; None to keep the directory's own.

        Raises:
            StoragePathError: the directory or URL has other files or another path, or cannot be written.
        """

    def check(self, files: FileOps = OS_FILES) -> None:
        """Check that the directory or URL is this path.

        Raises:
            WrongPathError: the directory or URL has no identity, or another path's.
            StoragePathError: the path cannot be reached, or its identity is damaged or from a newer version.
        """

    def hide_identity(self) -> bool:
        """Hide the identity of a path that is to be retired, so that no process begins or finishes a file on it.

        Calling it again has no effect.

        Returns:
            True if the identity is hidden now; False if the directory or URL can be reached but is not this path.

        Raises:
            StoragePathError: the path cannot be reached or changed.
        """

    def show_identity(self) -> None:
        """Undo `hide_identity`; calling it again has no effect (raises `StoragePathError`)."""

    def measured(self) -> StoragePath:
        """Return the path with its free bytes as weight; unchanged if they cannot be measured."""

    def space(self) -> DiskSpace | None:
        """Return the size and the free bytes of the path's file system; None on an object store, which has no limit.

        Raises:
            StoragePathError: the path cannot be reached.
        """

    def try_write(self) -> None:
        """Write a small file or object durably and delete it again (raises `OSError` or `StorageError`)."""

    def write_segment(self, name: SegmentName, files: FileOps = OS_FILES, *, stays_cached: bool = True) -> SegmentSink:
        """Return a new copy for writing.

        Args:
            name: The copy's name, which was never used on this path.
            files: The operating system, for a path in a directory.
            stays_cached: True if the operating system may keep the copy in memory for readers.

        Raises:
            OSError, StorageError: the copy cannot be begun.
        """

    def open_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> SegmentSource:
        """Return a copy, open for reading.

        Raises:
            SegmentGoneError: the path can be reached and has no such copy. On an object store, a read raises it.
            StoragePathError: the path or the copy cannot be read now.
        """

    def has_segment(self, name: SegmentName) -> bool:
        """Return True if the path has a complete copy of this name (raises `StoragePathError`)."""

    def segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Return the files under `segments/`, with ages as of `now_s` (seconds since 1970).

        A listing yields only candidates for garbage collection; a keyed read of the metadata decides if a file may be
        deleted. Files that vanish meanwhile and foreign names are left out.

        Raises:
            StoragePathError: the directory or URL is not this path, or cannot be listed.
        """

    def unchecked_segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Yield the files as `segment_files` does, but without a check of the identity, which may be hidden."""

    def delete_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> int:
        """Delete all files of a copy (segment, sidecar, unfinished ones) durably; returns their number.

        Raises:
            StoragePathError: the directory or URL is not this path, or a file cannot be deleted.
        """

    def delete_stored(self, stored: StoredFile) -> bool:
        """Delete one file of a listing, not durably; returns False if it did not exist.

        Raises:
            StoragePathError: the directory or URL is not this path, or the file cannot be deleted.
        """


PathTable: TypeAlias = Callable[[], Mapping[PathId, StoragePath]]
"""Function that returns a root's current storage paths. A long-lived reader calls it for each file that it opens,
because paths are added, moved and retired meanwhile."""


@dataclass(frozen=True, slots=True)
class PathFailure:
    """A storage path that failed during a write, and the reason in words."""

    path_id: PathId
    reason: str
