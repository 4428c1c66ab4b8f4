"""Disks that are cut from power, for tests with root's privileges.

What has reached the file of a loop device is what a disk would hold; what the kernel still caches is lost.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest

_TICK_NS = 10_000_000
"""How much earlier than its time a file's change may be stamped: the longest tick of Linux' clock."""


@dataclass(frozen=True, slots=True)
class CutDisk:
    """An ext4 file system on a loop device.

    Attributes:
        at: Where it is mounted.
    """

    at: Path
    _image: Path

    @contextmanager
    def cut(self) -> Iterator[Path]:
        """Mount a copy of the disk as a power cut leaves it; all processes that write to the disk must be stopped.

        Each copy is a file of its own. A metadata store that is not collected yet keeps its file system mounted, and a
        second mount of the same file would show that one, whatever was copied into the file since.
        """
        folder = Path(mkdtemp(dir=self._image.parent))
        copy = folder / "disk.img"
        self._copy_one_moment(copy)
        with _mounted(copy, folder / "mounted") as after:
            yield after
        copy.unlink()

    def _copy_one_moment(self, copy: Path) -> None:
        """Copy the disk, again while the kernel still writes to it: no disk ever held such a mixture."""
        while True:
            begun_ns = time.time_ns() - _TICK_NS
            subprocess.run(["cp", "--sparse=always", str(self._image), str(copy)], check=True)
            if self._image.stat().st_mtime_ns < begun_ns:
                return


@contextmanager
def cut_disk(base: Path, size_bytes: int) -> Iterator[CutDisk]:
    """Make a disk in the folder `base` and mount it; skip the test where that is impossible."""
    image = base / "disk.img"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with _mounted(image, base / "mounted") as at:
        yield CutDisk(at, image)


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    mount = subprocess.run(["mount", "-o", "loop", str(image), str(at)], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"loop devices cannot be mounted here: {mount.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
