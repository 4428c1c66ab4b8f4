"""Leases in a local folder: one small file for each holder, replaced by rename, never synced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.leases.contract import StoredLease, lease_name
from pulsar_on_spark.storage.permissions import make_folder, make_folders, opener

UNFINISHED_S: Final = 60.0
"""Age in seconds at which a temporary file counts as left by a killed process; writing one takes milliseconds."""
_SUFFIX: Final = ".json"


class LeaseFiles:
    """The leases in one folder.

    Args:
        folder: The folder; it may be absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def path(self, holder: str) -> Path:
        """Return the file of a holder."""
        return self.folder / f"{lease_name(holder)}{_SUFFIX}"

    def prepare(self, now_s: float) -> None:
        """Create the folder and its parents, and delete old temporary files."""
        with _writing(self.folder):
            make_folders(self.folder)
            for path in self.folder.glob("*.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    if now_s - path.stat().st_mtime > UNFINISHED_S:
                        path.unlink()

    def read(self, holder: str) -> bytes | None:
        """Return the content of the holder's file; None if there is no file."""
        with _reading(self.folder):
            stored = _stored(self.path(holder))
        return None if stored is None else stored.content

    def read_all(self) -> list[StoredLease]:
        """Return the leases of all files by name, except those of files that are deleted meanwhile."""
        with _reading(self.folder):
            try:
                paths = sorted(path for path in self.folder.iterdir() if path.suffix == _SUFFIX)
            except FileNotFoundError:
                return []
            return [stored for path in paths if (stored := _stored(path)) is not None]

    def write(self, holder: str, token: str, content: bytes) -> bool:
        """Write a temporary file, rename it, and return True.

        The folder is created if it is absent, because housekeeping deletes empty folders. Its parent is not created, so
        a deleted root stays deleted.
        """
        with _writing(self.path(holder)):
            with contextlib.suppress(FileExistsError):
                make_folder(self.folder)
            temporary = self._temporary(holder, token)
            with open(temporary, "wb", opener=opener) as file:
                file.write(content)
            os.replace(temporary, self.path(holder))
        return True

    def remove(self, holder: str, token: str, released: bytes) -> None:
        """Delete the file; another process of the same holder writes it again with its next renewal."""
        with _writing(self.path(holder)):
            self.path(holder).unlink(missing_ok=True)

    def discard_unfinished(self, holder: str, token: str) -> None:
        """Delete the temporary file."""
        with _writing(self.path(holder)):
            self._temporary(holder, token).unlink(missing_ok=True)

    def _temporary(self, holder: str, token: str) -> Path:
        return self.path(holder).with_suffix(f".{token}.tmp")


def sweep_lease_files(leases: Path, before_s: float) -> int:
    """Delete the lease files of all groups that were last renewed before a time, and then empty folders.

    Args:
        leases: The folder of all groups.
        before_s: The time, in seconds since 1970.

    Returns:
        The number of deleted files.
    """
    swept = 0
    for path in sorted(leases.glob("*/*")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before_s:
                path.unlink()
                swept += 1
    for folder in leases.glob("*/"):
        with contextlib.suppress(OSError):  # the folder is not empty, or another process has deleted it
            folder.rmdir()
    return swept


def _stored(path: Path) -> StoredLease | None:
    """Return the lease in a file; None if there is no file."""
    try:
        with open(path, "rb") as file:
            written_s = os.fstat(file.fileno()).st_mtime
            return StoredLease(path.stem, file.read(), written_s)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"Leases in {folder} cannot be read ({error}): make them readable.") from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"Lease file {path} cannot be written ({error}): make the root writable.") from error
