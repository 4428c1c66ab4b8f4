"""The object store in a local folder: an object is a file that gets its name only when its content is durable.

A file is written under a name that begins with a dot, synced, and linked to its key. So a key never names half of an
object, and the content under a key survives a power cut. Only the name may be lost, if another process has linked it
just now: `sync` makes names durable.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Final, TypeVar

from pulsar_on_spark.model.errors import ObjectsRefusedError, ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, Upload, Version
from pulsar_on_spark.storage.permissions import make_folder, opener
from pulsar_on_spark.storage.unsynced import sync_folder

PATIENCE_S: Final = 3.0
_LONGEST_PAUSE_S: Final = 0.2
_REFUSALS: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR)
)
"""Errors for which another attempt is pointless. All others, such as too many open files, may pass."""
_TMP_PREFIX: Final = "."
ABANDONED_S: Final = 3600.0
"""Age in seconds at which an unnamed file is deleted; a writer that is suspended for longer must write it again."""

_T = TypeVar("_T")


class LocalObjects:
    """The objects in a folder, for any number of processes on one host.

    Args:
        folder: The folder; it exists.
        patience_s: Time in seconds for which a method tries before it raises `ObjectsUnreachableError`.
    """

    def __init__(self, folder: Path, *, patience_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.url = str(folder)
        self._patience_s = patience_s
        self._durable: set[Path] = set()
        """The folders whose names this object has synced."""

    def __repr__(self) -> str:
        return f"LocalObjects({self.url!r})"

    def create(self, key: str, content: bytes) -> Created | Exists:
        """Write, sync and link the file; returns `Exists` if another writer's file has this key.

        Raises:
            ObjectsRefusedError: the disk is full or broken, or this process may not write; there is no new object.
            UnsyncedFolderError: the object may exist, but may not survive a power cut.
        """
        path = self.folder / key
        answer = self._until_certain(f"write {key}", lambda: self._create(path, content), _REFUSALS)
        if isinstance(answer, Created):  # the object exists, so no error may be a refusal from here on
            self.sync(_folder_of(key))
        return answer

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        """Write, sync and rename the file, under a lock of its folder (errors as `create`).

        Returns:
            The new version; None if the file has another version now, or is deleted.
        """
        path = self.folder / key
        answer = self._until_certain(f"replace {key}", lambda: self._replace(path, content, version), _REFUSALS)
        if answer is not None:
            self.sync(_folder_of(key))
        return answer

    def fetch(self, key: str) -> Fetched | None:
        """Return the file's content and version; None if there is no file."""
        return self._until_certain(f"read {key}", lambda: _read(self.folder / key))

    def fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes [start, end) of the file; None if there is no file."""

        def attempt() -> bytes | None:
            try:
                with open(self.folder / key, "rb") as file:
                    return os.pread(file.fileno(), end - start, start)
            except FileNotFoundError:
                return None

        return self._until_certain(f"read {key}", attempt)

    def confirm_absent(self, key: str) -> bool:
        """Return True if the folder exists without the file: an unmounted file system would prove nothing."""

        def attempt() -> bool:
            os.stat(self.folder)
            return not (self.folder / key).exists()

        return self._until_certain(f"look for {key}", attempt)

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Yield the files: list all names first, then read each file's status when the caller iterates to it."""
        for key in sorted(self._until_certain(f"list {prefix or 'everything'}", lambda: self._keys(prefix, after))):
            with suppress(FileNotFoundError):  # deleted since
                yield self._listed(key)

    def head(self, key: str) -> Listed | None:
        """Return the file's key, size, version and time; None if there is no file."""

        def attempt() -> Listed | None:
            try:
                return self._listed(key)
            except FileNotFoundError:
                return None

        return self._until_certain(f"look at {key}", attempt)

    def upload(self, key: str) -> Upload:
        """Return a new upload: a file that gets its name at the end (errors as `create`)."""
        return _LocalUpload(self, key)

    def delete(self, key: str) -> None:
        """Unlink the file, if it exists (raises `ObjectsRefusedError` if that is not permitted)."""
        self._until_certain(f"delete {key}", lambda: (self.folder / key).unlink(missing_ok=True), _REFUSALS)

    def sync(self, prefix: str) -> None:
        """Make the names in the folder of a prefix durable.

        Raises:
            UnsyncedFolderError: the names may not survive a power cut.
        """
        self._until_certain(f"sync {prefix}", lambda: sync_folder(self.folder, self.folder / prefix))

    def sweep(self, prefix: str) -> None:
        """Delete the unnamed files of a prefix that are older than `ABANDONED_S`, which killed writers left behind."""
        latest_s = time.time() - ABANDONED_S
        with suppress(FileNotFoundError), os.scandir(self.folder / prefix) as files:
            for file in files:
                if file.name.startswith(_TMP_PREFIX) and file.is_file() and file.stat().st_mtime < latest_s:
                    Path(file.path).unlink(missing_ok=True)

    def _listed(self, key: str) -> Listed:
        status = os.stat(self.folder / key)
        return Listed(key, status.st_size, _version(status), status.st_mtime)

    def _create(self, path: Path, content: bytes) -> Created | Exists:
        present = _read(path)
        if present is None:
            with self._unnamed(path, content) as (unnamed, version):
                try:
                    os.link(unnamed, path)
                except FileExistsError:
                    present = _read(path)
                    if present is None:  # deleted just now
                        return self._create(path, content)
            if present is None:
                return Created(version)
        if present.content == content:
            return Created(present.version)
        return Exists(present.content, present.version)

    def _replace(self, path: Path, content: bytes, version: Version) -> Version | None:
        """Attempt `replace` once; returns the new version, None if the file has another version or is deleted."""
        if not path.exists():
            return None
        with _locked(path.parent), self._unnamed(path, content) as (unnamed, new):
            present = _read(path)
            if present is None or present.version != version:
                return None
            os.rename(unnamed, path)
        return new

    @contextmanager
    def _unnamed(self, path: Path, content: bytes) -> Iterator[tuple[Path, Version]]:
        """Write a durable file under a temporary name beside `path`, yield name and version, then remove the name."""
        self.make_folders(path.parent)
        unnamed = path.parent / f"{_TMP_PREFIX}{uuid.uuid4().hex}"
        try:
            with open(unnamed, "xb", opener=opener) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                version = _version(os.fstat(file.fileno()))
            yield unnamed, version
        finally:
            with suppress(OSError):  # swept later
                unnamed.unlink()

    def make_folders(self, folder: Path) -> None:
        """Make a folder and its missing parents, with durable names (raises `OSError`).

        The name of a folder that exists may not be durable yet: its maker may have been killed before it synced it.
        """
        if folder == self.folder or (folder in self._durable and folder.is_dir()):
            return
        self.make_folders(folder.parent)
        with suppress(FileExistsError):
            make_folder(folder)
        sync_folder(self.folder, folder.parent)
        self._durable.add(folder)

    def _keys(self, prefix: str, after: str) -> list[str]:
        """Return the keys below a prefix that come after `after`, in any order.

        Python's order of texts is the order of their UTF-8 bytes.
        """
        keys: list[str] = []
        folders = [prefix]
        while folders:
            folder = folders.pop()
            with suppress(FileNotFoundError, NotADirectoryError):
                for name, is_folder in self._entries(folder, after):
                    key = f"{folder}/{name}" if folder else name
                    if is_folder:
                        folders.append(key)
                    elif key > after and not name.startswith(_TMP_PREFIX):
                        keys.append(key)
        return keys

    def _entries(self, folder: str, after: str) -> Iterator[tuple[str, bool]]:
        """Yield the names in a folder, with True for folders; most names before `after` are left out."""
        base = f"{folder}/" if folder else ""
        if after.startswith(base) and (rest := after[len(base) :]):
            # `rest` may begin with a folder's name; that folder may have later keys. Few names need a status.
            for name in os.listdir(self.folder / folder):
                if name > rest or rest.startswith(name):
                    yield name, (self.folder / folder / name).is_dir()
        else:
            with os.scandir(self.folder / folder) as entries:
                for entry in entries:
                    yield entry.name, entry.is_dir()

    def _until_certain(self, what: str, attempt: Callable[[], _T], refusals: Collection[int | None] = ()) -> _T:
        """Return the result of an operation, repeated while its error may pass.

        Args:
            what: The operation, for messages: a verb and its object.
            attempt: Attempts the operation once.
            refusals: Numbers of errors after which it is certain that nothing was written, nor will be.

        Raises:
            ObjectsRefusedError: the operation failed with one of `refusals`.
            ObjectsUnreachableError: it failed with another permanent error, or until the time limit.
        """
        deadline_s = time.monotonic() + self._patience_s
        pause_s = 0.001
        while True:
            try:
                return attempt()
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno in refusals:
                    raise ObjectsRefusedError(
                        f"{self.url} could not {what} ({reason}): check the disk, its free space and its permissions."
                    ) from error
                if error.errno in _REFUSALS or time.monotonic() + pause_s > deadline_s:
                    raise ObjectsUnreachableError(
                        f"{self.url} could not {what} ({reason}): check the disk, its permissions and the limits of "
                        "this process, and try again."
                    ) from error
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _LocalUpload:
    """An upload to a file, which gets its name when `finish` has made its content durable."""

    def __init__(self, objects: LocalObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._path = objects.folder / key
        self._unnamed = self._path.parent / f"{_TMP_PREFIX}{uuid.uuid4().hex}"
        self._file = self._certain(self._open)

    def write(self, content: bytes) -> None:
        """Append bytes to the file."""
        self._certain(lambda: self._file.write(content))

    def finish(self) -> None:
        """Sync the file and rename it."""

        def attempt() -> None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._unnamed, self._path)

        self._certain(attempt)
        self._objects.sync(_folder_of(self._key))

    def abandon(self) -> None:
        """Delete the unfinished file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):  # swept later
            self._unnamed.unlink()

    def _open(self) -> BufferedWriter:
        self._objects.make_folders(self._path.parent)
        return open(self._unnamed, "xb", opener=opener)

    def _certain(self, step: Callable[[], _T]) -> _T:
        """Return the result of a step, without a retry, because a repeated write or sync that succeeds proves nothing.

        Raises:
            ObjectsUnreachableError: the step failed.
        """
        try:
            return step()
        except OSError as error:
            raise ObjectsUnreachableError(
                f"{self._objects.url} could not write {self._key} ({error.strerror or error}): check the disk, and try "
                "again."
            ) from error


def _folder_of(key: str) -> str:
    return key.rpartition("/")[0]


def _read(path: Path) -> Fetched | None:
    """Return a file's content and version; None if there is no file."""
    try:
        with open(path, "rb") as file:
            return Fetched(file.read(), _version(os.fstat(file.fileno())))
    except FileNotFoundError:
        return None


def _version(status: os.stat_result) -> Version:
    return Version(f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
