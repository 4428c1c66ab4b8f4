"""The bytes of files that the operating system holds in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from pulsar_on_spark.storage.files import OS_FILES

_LIBC = ctypes.CDLL(None, use_errno=True)


def cached_bytes(path: Path) -> int:
    """Return the number of a file's bytes that are in memory, in whole pages."""
    size_bytes = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size_bytes) as mapped:
        pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(mapped)
        assert _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size_bytes), pages) == 0
        del begin
        return sum(page & 1 for page in pages) * mmap.PAGESIZE


def can_forget(directory: Path) -> bool:
    """True if a file there can leave the memory: a file of an in-memory file system cannot."""
    probe = directory / "probe"
    fd = OS_FILES.create(probe)
    try:
        OS_FILES.write(fd, bytes(mmap.PAGESIZE))
        OS_FILES.fdatasync(fd)
        OS_FILES.drop_cached_bytes(fd, mmap.PAGESIZE)
        return cached_bytes(probe) == 0
    finally:
        OS_FILES.close(fd)
        os.unlink(probe)
