"""A storage path in a directory of this host.

An empty or foreign disk at the path's directory must not make files look deleted. So the path's identity is checked
whenever a file is opened.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pulsar_on_spark.model.errors import NoAccessError, StoragePathError, WrongPathError
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.files import (
    OS_FILES,
    TMP_INFIX,
    FileOps,
    make_directory,
    read_file,
    write_file,
    write_synced,
)
from pulsar_on_spark.storage.identity import IDENTITY_NAME, Identity, being_retired, unreadable
from pulsar_on_spark.storage.permissions import set_mode
from pulsar_on_spark.storage.segment_files import FileSink, FileSource
from pulsar_on_spark.storage.segment_names import SEGMENTS, folder_of, parse_file_name, segment_key, sidecar_key
from pulsar_on_spark.storage.storage_path import DiskSpace, StoragePath, StoredFile

_PROBE_BYTES = 65_536
_HIDDEN_IDENTITY = f"{IDENTITY_NAME}.retired"


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A storage path in a directory; `StoragePath` describes the methods in full.

    Attributes:
        path_id: The path's id in the root.
        directory: The path's directory.
        cluster_id: The id of the root's cluster.
        label: The label of the path's rack; "" without a label.
        host: The host on whose disk the directory is; "" for this host.
        weight: The path's share of new files: its free bytes when they were last measured.
        is_given_up: True if an operator declared the disk lost, so that copies which cannot be reached count as gone.
    """

    path_id: PathId
    directory: Path
    cluster_id: str
    label: str = ""
    host: str = ""
    weight: int = field(default=1, compare=False)
    is_given_up: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"storage path {self.path_id} ({self.directory})"

    @property
    def place(self) -> Path:
        """The path's directory."""
        return self.directory

    @property
    def is_elsewhere(self) -> bool:
        """True if the path is on another host."""
        return self.host not in ("", socket.gethostname())

    def create(self, files: FileOps = OS_FILES, mode: int | None = None) -> None:
        """Make the directory and its identity file; None as `mode` keeps the directory's permissions."""
        identity = self.directory / IDENTITY_NAME
        try:
            make_directory(files, self.directory)
            if identity.exists():
                self.check(files)
            else:
                self._refuse_foreign_files()
                if mode is not None:
                    set_mode(self.directory, mode)
                write_file(files, identity, self._identity.encode())
            make_directory(files, self.directory / SEGMENTS)
        except OSError as error:
            raise StoragePathError(
                f"{self._name} cannot be created ({error}): give a directory that can be written."
            ) from error

    def check(self, files: FileOps = OS_FILES) -> None:
        """Check that the directory has the identity file of this path."""
        if self.is_elsewhere:
            # A directory of the same name on this host says nothing about the path.
            raise StoragePathError(f"{self._name} is on the host {self.host}: use it on that host.")
        try:
            content = read_file(files, self.directory / IDENTITY_NAME)
        except FileNotFoundError as error:
            if (self.directory / _HIDDEN_IDENTITY).exists():
                raise being_retired(self._name, self.path_id) from error
            kind = WrongPathError if self.directory.is_dir() else StoragePathError
            raise kind(
                f"{self._name} has no {IDENTITY_NAME}: mount its disk there, or mark the path as lost with `pulsarpy "
                "storage lost`."
            ) from error
        except OSError as error:
            raise unreadable(self._name, error) from error
        self._identity.require(Identity.decode(content, self._name), self._name, "mount the right disk there")

    def hide_identity(self) -> bool:
        """Rename the identity file, and return True; return False if the directory is not this path."""
        try:
            self.check()
        except WrongPathError:
            return (self.directory / _HIDDEN_IDENTITY).exists()
        self._rename_identity(IDENTITY_NAME, _HIDDEN_IDENTITY)
        return True

    def show_identity(self) -> None:
        """Rename the identity file back, unless it has its name already."""
        if not (self.directory / IDENTITY_NAME).exists():
            self._rename_identity(_HIDDEN_IDENTITY, IDENTITY_NAME)

    def _rename_identity(self, source: str, target: str) -> None:
        try:
            (self.directory / source).rename(self.directory / target)
            OS_FILES.fsync_directory(self.directory)
        except OSError as error:
            raise StoragePathError(
                f"The identity file of {self} cannot be renamed ({error}): make its directory writable."
            ) from error

    def measured(self) -> LocalPath:
        """Return the path with its free bytes as weight; unchanged if the operating system cannot measure them."""
        try:
            return replace(self, weight=self.space().free)
        except StoragePathError:
            return self

    def space(self) -> DiskSpace:
        """Return the size and the free bytes of the file system by the operating system."""
        try:
            usage = shutil.disk_usage(self.directory)
        except OSError as error:
            raise StoragePathError(f"{self._name} cannot be examined ({error}): check its disk.") from error
        return DiskSpace(usage.total, usage.free)

    def try_write(self) -> None:
        """Write and sync a small file."""
        probe = self.directory / f".probe-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            write_synced(OS_FILES, probe, b"\0" * _PROBE_BYTES)
        finally:
            with suppress(OSError):
                probe.unlink()

    def segment_file(self, name: SegmentName) -> Path:
        """Return the path of a copy's file.

        Raises:
            InvalidArgumentError: the id is not a valid file name.
        """
        return self.directory / segment_key(name)

    def sidecar_file(self, name: SegmentName) -> Path:
        """Return the path of the sidecar of a copy with more than 16 batches (raises as `segment_file`)."""
        return self.directory / sidecar_key(name)

    def make_segment_directory(self, name: SegmentName, files: FileOps = OS_FILES) -> None:
        """Make the segment file's directory durably."""
        make_directory(files, self.directory / folder_of(name))

    def write_segment(self, name: SegmentName, files: FileOps = OS_FILES, *, stays_cached: bool = True) -> FileSink:
        """Return a new copy, which has a temporary name until it is sealed."""
        self.check(files)
        self.make_segment_directory(name, files)
        final, sidecar = self.segment_file(name), self.sidecar_file(name)
        return FileSink(final, sidecar, files, partial(self.check, files), stays_cached=stays_cached)

    def open_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> FileSource:
        """Check the path, and return the copy, open for reading."""
        self.check(files)
        return FileSource(self.segment_file(name), self.sidecar_file(name), files, partial(self.check, files))

    def has_segment(self, name: SegmentName) -> bool:
        """Return True if the copy's file exists."""
        self.check()
        return self.segment_file(name).exists()

    def segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Check the path, and return its segment files and sidecars."""
        self.check()
        return self.unchecked_segment_files(now_s)

    def unchecked_segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Yield the segment files and sidecars without checking the path, whose identity file may be hidden."""
        try:
            folders = sorted(entry.path for entry in os.scandir(self.directory / SEGMENTS) if entry.is_dir())
            for folder in folders:
                for entry in os.scandir(folder):
                    if stored := _stored_file(entry, now_s):
                        yield stored
        except OSError as error:
            kind = NoAccessError if isinstance(error, PermissionError) else StoragePathError
            raise kind(f"{self._name} cannot be listed ({error}): check its disk.") from error

    def delete_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> int:
        """Unlink the copy's files, sync their directory, and return the number of files."""
        self.check(files)
        final, sidecar = self.segment_file(name), self.sidecar_file(name)
        count = 0
        try:
            unfinished = [each for file in (final, sidecar) for each in final.parent.glob(f"{file.name}{TMP_INFIX}*")]
            # The segment goes first: a segment without its sidecar would look damaged, a sidecar alone looks absent.
            for path in (final, sidecar, *sorted(unfinished)):
                with suppress(FileNotFoundError):
                    files.unlink(path)
                    count += 1
            if count:
                files.fsync_directory(final.parent)
        except OSError as error:
            raise StoragePathError(f"File {name} cannot be deleted from {self} ({error}): check its disk.") from error
        return count

    def delete_stored(self, stored: StoredFile) -> bool:
        """Unlink the file; returns False if it did not exist."""
        self.check()
        try:
            OS_FILES.unlink(Path(stored.location))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoragePathError(f"{stored.location} cannot be deleted ({error}): check its disk.") from error
        return True

    @property
    def _name(self) -> str:
        return f"Storage path {self.path_id} ({self.directory})"

    @property
    def _identity(self) -> Identity:
        return Identity(self.cluster_id, self.path_id)

    def _refuse_foreign_files(self) -> None:
        # An interrupted creation leaves an unfinished identity file; a fresh ext4 has lost+found.
        foreign = sorted(
            name
            for name in os.listdir(self.directory)
            if name != "lost+found" and not name.startswith(f"{IDENTITY_NAME}{TMP_INFIX}")
        )
        if foreign:
            raise StoragePathError(
                f"{self._name} is not empty (it holds {foreign[0]!r}) and has no {IDENTITY_NAME}: give an empty "
                "directory."
            )


def local_paths(paths: Mapping[PathId, StoragePath]) -> dict[PathId, LocalPath]:
    """Return the storage paths in directories, by id; paths on object stores are left out."""
    return {path_id: path for path_id, path in paths.items() if isinstance(path, LocalPath)}


def _stored_file(entry: os.DirEntry[str], now_s: float) -> StoredFile | None:
    """Return a directory entry as a file of the path; None for a foreign name or a deleted file."""
    final, tmp, _ = entry.name.partition(TMP_INFIX)
    parsed = parse_file_name(final)
    if parsed is None:
        return None
    try:
        state = entry.stat()
    except FileNotFoundError:
        return None
    except OSError:
        # A link that leads nowhere is a bad copy of one file, which must not hide all others.
        state = entry.stat(follow_symlinks=False)
    name, is_sidecar = parsed
    return StoredFile(name, entry.path, now_s - state.st_mtime, state.st_size, is_sidecar, is_tmp=bool(tmp))
