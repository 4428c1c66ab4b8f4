"""A file layer on which one kind of call fails under chosen directories, after a number of successful calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from typing_extensions import override

from pulsar_on_spark.storage.files import OS_FILES, FileOps

Action = Literal["create", "open", "write", "read_into", "fdatasync", "rename", "fsync_directory", "mkdir"]


@dataclass
class FailingFiles(FileOps):
    """File layer like `OsFiles`, where calls of `action` fail for paths under `directories`.

    Args:
        directories: Directories under which the calls fail, such as the directory of a storage path.
        action: The method of `FileOps` that fails.
        skip: Number of calls of `action` that succeed, in each directory, before the first failure.
        error_number: The errno of the failure.

    Attributes:
        calls: (action, directory) of every call under `directories`, also of calls after the failure.
    """

    directories: tuple[Path, ...]
    action: Action
    skip: int
    error_number: int
    calls: list[tuple[str, Path]] = field(default_factory=list)
    _counts: Counter[Path] = field(default_factory=Counter)
    _open_files: dict[int, Path] = field(default_factory=dict)

    def _step(self, action: str, path: Path) -> None:
        for directory in self.directories:
            if path.is_relative_to(directory):
                self.calls.append((action, directory))
                if action == self.action:
                    self._counts[directory] += 1
                    if self._counts[directory] > self.skip:
                        raise OSError(self.error_number, os.strerror(self.error_number), str(path))

    @override
    def create(self, path: Path) -> int:
        self._step("create", path)
        fd = OS_FILES.create(path)
        self._open_files[fd] = path
        return fd

    @override
    def open(self, path: Path) -> int:
        self._step("open", path)
        fd = OS_FILES.open(path)
        self._open_files[fd] = path
        return fd

    @override
    def write(self, fd: int, data: bytes) -> None:
        self._step("write", self._open_files[fd])
        OS_FILES.write(fd, data)

    @override
    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write the buffers, which counts as a call of `write`."""
        self._step("write", self._open_files[fd])
        OS_FILES.write_buffers(fd, buffers)

    @override
    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        self._step("read_into", self._open_files[fd])
        return OS_FILES.read_into(fd, offset, target)

    @override
    def size(self, fd: int) -> int:
        return OS_FILES.size(fd)

    @override
    def identity(self, file: int | Path) -> tuple[int, int]:
        return OS_FILES.identity(file)

    @override
    def fdatasync(self, fd: int) -> None:
        self._step("fdatasync", self._open_files[fd])
        OS_FILES.fdatasync(fd)

    @override
    def drop_cached_bytes(self, fd: int, end: int) -> None:
        self._step("forget", self._open_files[fd])
        OS_FILES.drop_cached_bytes(fd, end)

    @override
    def close(self, fd: int) -> None:
        self._step("close", self._open_files.pop(fd))
        OS_FILES.close(fd)

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source)
        OS_FILES.rename(source, target)

    @override
    def fsync_directory(self, path: Path) -> None:
        self._step("fsync_directory", path)
        OS_FILES.fsync_directory(path)

    @override
    def mkdir(self, path: Path) -> None:
        self._step("mkdir", path)
        OS_FILES.mkdir(path)

    @override
    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        OS_FILES.unlink(path)
