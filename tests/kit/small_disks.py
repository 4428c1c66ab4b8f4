"""Small file systems for tests: they fill up, get room again, grow and turn read-only. To mount them takes root."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20


class SmallDisk:
    """A file system in memory, unmounted at the end of the `with` block, even with open files.

    Attributes:
        at: Where it is mounted.
    """

    def __init__(self, at: Path, size_mib: int) -> None:
        self.at = at
        self._filler = at / "filler"
        at.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", at], check=True)

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.at):
            subprocess.run(["umount", "--lazy", self.at], check=True)

    def fill(self, *, but_bytes: int = 0) -> None:
        """Write until no more than `but_bytes` bytes are free."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while (left_bytes := shutil.disk_usage(self.at).free - but_bytes) > 0:
                file.write(bytes(min(left_bytes, MIB)))

    def make_room(self) -> None:
        """Delete what `fill` has written."""
        self._filler.unlink()

    def grow(self, size_mib: int) -> None:
        """Make it larger under its users."""
        self._remount(f"size={size_mib}m")

    def turn_read_only(self) -> None:
        """Refuse writes from now on."""
        self._remount("ro")

    def unmount(self) -> None:
        """Unmount it as an operator does: that fails while a file on it is open."""
        subprocess.run(["umount", self.at], check=True)

    def _remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", self.at], check=True)
