"""A storage path: a directory with an identity, on which copies of segment files are kept.

It corresponds to a bookie of BookKeeper, and its identity file to a bookie's cookie. An empty or foreign disk mounted
in a path's place must not make files look deleted, so the identity is checked whenever a file is opened.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pulsar_on_spark.model.errors import InvalidArgumentError, StoragePathError, WrongPathError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.files import OS_FILES, TMP_INFIX, FileOps, make_directory, read_file, write_file
from pulsar_on_spark.storage.permissions import set_mode

IDENTITY_FILE = "pulsarpy-path.json"
IDENTITY_FORMAT = 1
SEGMENT_SUFFIX = ".arrow"
SIDECAR_SUFFIX = ".crc"
_SEGMENTS = "segments"
_LEGAL_FILE_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{1,127}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file under `segments/`: a segment or a sidecar, complete or still being written.

    `age_s` is the time since its last write by the wall clock. It may nominate garbage, but never decide its deletion.
    """

    file_id: FileId
    path: Path
    age_s: float
    size_bytes: int
    is_tmp: bool


@dataclass(frozen=True, slots=True)
class StoragePath:
    """A storage path as recorded in the root's metadata. Picklable; holds no open file.

    Attributes:
        path_id: The path's id in the root.
        directory: The path's directory.
        cluster_id: The root's identity.
        label: The path's rack.
        weight: The path's share of new files: its free bytes when they were last measured.
        is_given_up: True if an operator declared its disk lost: a copy that cannot be reached on it is gone.
    """

    path_id: PathId
    directory: Path
    cluster_id: str
    label: str = ""
    weight: int = field(default=1, compare=False)
    is_given_up: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"storage path {self.path_id} ({self.directory})"

    def create(self, files: FileOps = OS_FILES, mode: int | None = None) -> None:
        """Make the directory and its identity file durably; harmless if they are already this path's.

        Args:
            files: The file operations to create them with.
            mode: Permissions for the directory, which its content inherits; None to keep those it has.

        Raises:
            StoragePathError: the directory holds other files or another path, or cannot be written.
        """
        identity = self.directory / IDENTITY_FILE
        try:
            make_directory(files, self.directory)
            if identity.exists():
                self.check(files)
            else:
                self._refuse_foreign_files()
                if mode is not None:
                    set_mode(self.directory, mode)
                content = {"format_version": IDENTITY_FORMAT, "cluster_id": self.cluster_id, "path_id": self.path_id}
                write_file(files, identity, json.dumps(content).encode())
            make_directory(files, self.directory / _SEGMENTS)
        except OSError as error:
            raise StoragePathError(
                f"{self._name} cannot be created ({error}): give a directory that can be written."
            ) from error

    def check(self, files: FileOps = OS_FILES) -> None:
        """Check that the directory is this path and no other.

        Raises:
            WrongPathError: the directory has no identity file, or another path's.
            StoragePathError: it is missing, or the identity file is damaged or from a newer version.
        """
        identity = self.directory / IDENTITY_FILE
        try:
            content = json.loads(read_file(files, identity))
            actual = (content["cluster_id"], content["path_id"])
            version = int(content["format_version"])
        except FileNotFoundError as error:
            kind = WrongPathError if self.directory.is_dir() else StoragePathError
            raise kind(
                f"{self._name} has no {IDENTITY_FILE}: mount its disk there, or mark the path as lost."
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoragePathError(
                f"{self._name}: {IDENTITY_FILE} cannot be read ({error}): repair its disk, or mark the path as lost."
            ) from error
        if version > IDENTITY_FORMAT:
            raise StoragePathError(
                f"{self._name} has format version {version}, this program knows up to {IDENTITY_FORMAT}: upgrade it."
            )
        if actual != (self.cluster_id, self.path_id):
            raise WrongPathError(
                f"{self._name} is path {actual[1]} of cluster {actual[0]}, not path {self.path_id} of cluster "
                f"{self.cluster_id}: mount the right disk there."
            )

    def segment_file(self, file_id: FileId) -> Path:
        """The path of a segment file's copy.

        Raises:
            InvalidArgumentError: the id is not a valid file name.
        """
        return self._directory_of(file_id) / f"{file_id}{SEGMENT_SUFFIX}"

    def sidecar_file(self, file_id: FileId) -> Path:
        """The path of the checksums of a segment file with more than 16 batches (raises as `segment_file`)."""
        return self._directory_of(file_id) / f"{file_id}{SIDECAR_SUFFIX}"

    def make_segment_directory(self, file_id: FileId, files: FileOps = OS_FILES) -> None:
        """Make the segment file's directory durably."""
        make_directory(files, self._directory_of(file_id))

    def segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """List the files under `segments/`, with ages as of `now_s` (seconds since 1970).

        A listing only nominates garbage; a keyed read of the metadata decides whether a file may be deleted. Files that
        vanish meanwhile and foreign names are left out.

        Raises:
            StoragePathError: the directory is not this path, or cannot be listed.
        """
        self.check()
        try:
            buckets = sorted(entry.path for entry in os.scandir(self.directory / _SEGMENTS) if entry.is_dir())
            for bucket in buckets:
                for entry in os.scandir(bucket):
                    with suppress(FileNotFoundError):
                        if stored := _stored_file(entry, now_s):
                            yield stored
        except OSError as error:
            raise StoragePathError(f"{self._name} cannot be listed ({error}): check its disk.") from error

    def delete_segment(self, file_id: FileId, files: FileOps = OS_FILES) -> int:
        """Delete all files of this id (segment, sidecar, unfinished ones) durably; returns their number.

        Raises:
            StoragePathError: the directory is not this path, or a file cannot be deleted.
        """
        self.check(files)
        directory = self._directory_of(file_id)
        count = 0
        try:
            # The segment goes first: a segment without its sidecar would look damaged, a sidecar alone looks absent.
            for path in sorted(directory.glob(f"{file_id}.*")):
                with suppress(FileNotFoundError):
                    files.unlink(path)
                    count += 1
            if count:
                files.fsync_directory(directory)
        except OSError as error:
            raise StoragePathError(
                f"File {file_id} cannot be deleted from {self} ({error}): check its disk."
            ) from error
        return count

    def free_bytes(self) -> int:
        """The free bytes of the path's file system.

        Raises:
            StoragePathError: the directory is missing.
        """
        try:
            return shutil.disk_usage(self.directory).free
        except OSError as error:
            raise StoragePathError(f"{self._name} cannot be examined ({error}): check its disk.") from error

    @property
    def _name(self) -> str:
        return f"Storage path {self.path_id} ({self.directory})"

    def _directory_of(self, file_id: FileId) -> Path:
        if not _LEGAL_FILE_ID.fullmatch(file_id):
            raise InvalidArgumentError(f"File id {file_id!r} is not a valid file name: use letters, digits, _ and -.")
        return self.directory / _SEGMENTS / file_id[:2]

    def _refuse_foreign_files(self) -> None:
        # An interrupted creation leaves an unfinished identity file; a fresh ext4 has lost+found.
        foreign = sorted(
            name
            for name in os.listdir(self.directory)
            if name != "lost+found" and not name.startswith(f"{IDENTITY_FILE}{TMP_INFIX}")
        )
        if foreign:
            raise StoragePathError(
                f"{self._name} is not empty (it holds {foreign[0]!r}) and not a storage path: give an empty directory."
            )


def _stored_file(entry: os.DirEntry[str], now_s: float) -> StoredFile | None:
    final, tmp, _ = entry.name.partition(TMP_INFIX)
    file_id, suffix = os.path.splitext(final)
    if suffix not in (SEGMENT_SUFFIX, SIDECAR_SUFFIX) or not _LEGAL_FILE_ID.fullmatch(file_id):
        return None
    state = entry.stat()
    return StoredFile(
        file_id=FileId(file_id),
        path=Path(entry.path),
        age_s=now_s - state.st_mtime,
        size_bytes=state.st_size,
        is_tmp=bool(tmp),
    )


PathTable: TypeAlias = Callable[[], Mapping[PathId, StoragePath]]
"""Function that returns a root's current storage paths. A long-lived reader calls it for each file that it opens,
because paths are added, moved and retired meanwhile."""


@dataclass(frozen=True, slots=True)
class PathFailure:
    """A storage path that was given up during a write, and the reason."""

    path_id: PathId
    reason: str
