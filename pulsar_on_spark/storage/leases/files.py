"""The files of leases: one small file for each holder in a folder, replaced by rename, never synced.

The content of leases and their expiry are defined in `topic.catalog.leases`. Files are not synced, because no holder
survives a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pulsar_on_spark.storage.permissions import make_folder, make_folders, opener

UNFINISHED_S: Final = 60.0
"""A temporary file this old was left by a process that was killed: writing one takes milliseconds."""


def lease_folder(root: Path, group: str) -> Path:
    """Return the folder of the leases of one group of holders, such as the consumers of a subscription."""
    return root / "leases" / file_name(group)


def file_name(text: str) -> str:
    """Return a file name for any text: short, readable, and different for different texts on any file system."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


class LeaseFiles:
    """The lease files in one folder. Methods raise `OSError` unless documented otherwise.

    Args:
        folder: The folder; it may be absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, holder: str) -> Path:
        """Return the file of a holder."""
        return self.folder / f"{file_name(holder)}.json"

    def prepare(self, now_s: float) -> None:
        """Create the folder and its parents, and delete old temporary files that killed processes left in it.

        Args:
            now_s: The time, in seconds since 1970.
        """
        make_folders(self.folder)
        for path in self.folder.glob("*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if now_s - path.stat().st_mtime > UNFINISHED_S:
                    path.unlink()

    def read(self, holder: str) -> bytes | None:
        """Return the content of a holder's file; None without one."""
        return _content(self.path(holder))

    def read_all(self) -> Iterator[tuple[Path, bytes]]:
        """Iterate over all files and their contents by name; a file that vanishes meanwhile is left out."""
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return
        for path in paths:
            if (content := _content(path)) is not None:
                yield path, content

    def write(self, holder: str, token: str, content: str) -> None:
        """Replace a holder's file in one step.

        The folder is created if it is absent, as housekeeping deletes empty ones; its parent is not, so a deleted root
        stays deleted.

        Args:
            holder: The holder.
            token: Id of the writing process, unique among the processes of this holder.
            content: The new content.
        """
        with contextlib.suppress(FileExistsError):
            make_folder(self.folder)
        temporary = self._temporary(holder, token)
        with open(temporary, "w", encoding="utf-8", opener=opener) as file:
            file.write(content)
        os.replace(temporary, self.path(holder))

    def remove(self, holder: str) -> None:
        """Delete a holder's file, if there is one."""
        self.path(holder).unlink(missing_ok=True)

    def discard_unfinished(self, holder: str, token: str) -> None:
        """Delete the temporary file of a failed `write`, if there is one."""
        self._temporary(holder, token).unlink(missing_ok=True)

    def _temporary(self, holder: str, token: str) -> Path:
        return self.path(holder).with_suffix(f".{token}.tmp")


def age_s(path: Path, now_s: float) -> float | None:
    """Return the time since a file was written, in seconds by the wall clock; None if it is gone."""
    try:
        return now_s - path.stat().st_mtime
    except FileNotFoundError:
        return None


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
