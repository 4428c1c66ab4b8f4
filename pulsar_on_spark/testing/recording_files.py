"""Crash tests of durable files: record every step of a write, then rebuild the states that a crash may leave on disk.

`RecordingFiles` works like `OsFiles` and records each step that changes the disk. `Recording.materialise` builds, in
another directory, the state after a crash that followed the first N steps. A `Crash` is an assumption about the loss
of changes that were not durable yet. A test tries every N with every `Crash`, and opens the
result as a process does after a reboot. This is a small version of ALICE (OSDI '14). By POSIX's rules, bytes are
durable after fdatasync of the file, and names after fsync of their directory.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from typing_extensions import override

from pulsar_on_spark.storage.files import FileOps, OsFiles


class Crash(Enum):
    """Assumption about the steps whose effects are on disk after a crash."""

    KEEP_ALL = "the effects of all steps, as after a killed process"
    TORN = "as KEEP_ALL, but only half of the last step's bytes if it was a write"
    DROP_DATA = "all names, but each file's bytes only up to its last fdatasync"
    DROP_NAMES = "all bytes, but each directory's names only as of its last fsync"
    DROP_ALL = "each file's bytes up to its last fdatasync, each directory's names as of its last fsync"


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step, which changes the disk.

    Attributes:
        action: The name of the method of `FileOps`.
        path: The absolute path of the file or directory; of the source for a rename.
        target: The absolute new path of a rename; None for other actions.
        file: The id of an open file, which stays the same after a rename.
        data: The bytes of a write.
    """

    action: str
    path: Path
    target: Path | None = None
    file: str = ""
    data: bytes = b""


@dataclass
class RecordingFiles(FileOps):
    """File layer that executes every step and appends it to the log file `log`.

    The log has the steps of all threads and processes in the order of their execution. The object can be pickled, so
    that Spark's workers can share a log.
    """

    log: Path
    _os: OsFiles = field(default_factory=OsFiles)
    _open_files: dict[int, tuple[str, Path]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[RecordingFiles], tuple[Path]]:
        return RecordingFiles, (self.log,)

    @override
    def create(self, path: Path) -> int:
        with self._locked():
            fd = self._os.create(path)
            self._open_files[fd] = (secrets.token_hex(8), path)
            self._note(Step("create", path, file=self._open_files[fd][0]))
        return fd

    @override
    def open(self, path: Path) -> int:
        """Open a file for reading, which is not recorded, and return its descriptor."""
        return self._os.open(path)

    @override
    def write(self, fd: int, data: bytes) -> None:
        file, path = self._open_files[fd]
        with self._locked():
            self._os.write(fd, data)
            self._note(Step("write", path, file=file, data=bytes(data)))

    @override
    def write_buffers(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write the buffers as one recorded step."""
        self.write(fd, b"".join(buffers))

    @override
    def read_into(self, fd: int, offset: int, target: memoryview) -> int:
        return self._os.read_into(fd, offset, target)

    @override
    def size(self, fd: int) -> int:
        return self._os.size(fd)

    @override
    def identity(self, file: int | Path) -> tuple[int, int]:
        return self._os.identity(file)

    @override
    def fdatasync(self, fd: int) -> None:
        file, path = self._open_files[fd]
        with self._locked():
            self._os.fdatasync(fd)
            self._note(Step("fdatasync", path, file=file))

    @override
    def drop_cached_bytes(self, fd: int, end: int) -> None:
        """Record nothing: the disk does not change."""
        self._os.drop_cached_bytes(fd, end)

    @override
    def close(self, fd: int) -> None:
        self._open_files.pop(fd, None)
        self._os.close(fd)

    @override
    def rename(self, source: Path, target: Path) -> None:
        with self._locked():
            self._os.rename(source, target)
            self._note(Step("rename", source, target))

    @override
    def fsync_directory(self, path: Path) -> None:
        with self._locked():
            self._os.fsync_directory(path)
            self._note(Step("fsync_directory", path))

    @override
    def mkdir(self, path: Path) -> None:
        with self._locked():
            self._os.mkdir(path)
            self._note(Step("mkdir", path))

    @override
    def unlink(self, path: Path) -> None:
        with self._locked():
            self._os.unlink(path)
            self._note(Step("unlink", path))

    def recording(self, before: Path | None = None) -> Recording:
        """Return the steps recorded so far.

        Args:
            before: A copy of the recorded directory from before the first step; None if it was empty then.
        """
        steps = []
        if self.log.exists():
            with open(self.log, "rb") as log:
                while log.peek(1):
                    steps.append(pickle.load(log))
        return Recording(steps, before)

    def _locked(self) -> _LogLock:
        return _LogLock(self.log)

    def _note(self, step: Step) -> None:
        with open(self.log, "ab") as log:
            log.write(pickle.dumps(step))


class _LogLock:
    """Lock between threads and processes, held while a step is executed and logged (flock belongs to an open file)."""

    def __init__(self, log: Path) -> None:
        self._path = log.with_name(f"{log.name}.lock")

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


@dataclass
class _File:
    """A file's bytes as written, and the number of them that are durable."""

    content: bytearray = field(default_factory=bytearray)
    durable_bytes: int = 0


_Names = dict[str, dict[str, _File | None]]
"""The entries of the recorded directory and of each directory in it, by name: a file, or None for a directory."""


class Recording:
    """Recorded steps, which can be replayed up to any step."""

    def __init__(self, steps: Sequence[Step], before: Path | None = None) -> None:
        self.steps = tuple(steps)
        self._before = before

    def materialise(self, step_count: int, crash: Crash, base: Path, target: Path) -> None:
        """Build under `target` the contents of `base` after a crash that followed the first `step_count` steps.

        Files under `base` from before the recording are taken from the copy `before`, and are durable. Without a copy,
        `base` must have been empty at first. Steps outside `base` are ignored.

        Args:
            step_count: Number of completed steps, 0 to `len(steps)`.
            crash: Assumption about the steps whose effects are on disk.
            base: The recorded directory.
            target: The new directory; an existing one is replaced.
        """
        known = {} if self._before is None else _standing(self._before, base)
        names, durable_names = _replay(self.steps[:step_count], known, base, torn=crash is Crash.TORN)
        kept = durable_names if crash in (Crash.DROP_NAMES, Crash.DROP_ALL) else names
        _build(kept, base, target, synced_only=crash in (Crash.DROP_DATA, Crash.DROP_ALL))


def _standing(before: Path, base: Path) -> _Names:
    """Return the files of `before`, a copy of `base`, under their names in `base`; all of them are durable."""
    names: _Names = {}
    for found in before.rglob("*"):
        content = None if found.is_dir() else bytearray(found.read_bytes())
        directory = str(base / found.parent.relative_to(before))
        names.setdefault(directory, {})[found.name] = None if content is None else _File(content, len(content))
    return names


def _replay(steps: Sequence[Step], known: _Names, base: Path, *, torn: bool) -> tuple[_Names, _Names]:
    """Return the files under `base` after the steps by name, and then those whose names are durable.

    With `torn`, only the first half of the last step's bytes is written. Names are strings, because comparing `Path`
    objects is slow, and tests call this for every step.
    """
    names = {directory: dict(found) for directory, found in known.items()}
    durable_names = dict(known)
    files: dict[str, _File] = {}
    for number, step in enumerate(steps, start=1):
        path = str(step.path)
        if not f"{path}/".startswith(f"{base}/"):
            continue
        directory, _, name = path.rpartition("/")
        match step.action:
            case "mkdir":
                names.setdefault(directory, {})[name] = None
            case "create":
                names.setdefault(directory, {})[name] = files[step.file] = _File()
            case "write":
                count = len(step.data) // 2 if torn and number == len(steps) else len(step.data)
                files[step.file].content += step.data[:count]
            case "fdatasync":
                files[step.file].durable_bytes = len(files[step.file].content)
            case "rename":
                assert step.target is not None
                names.setdefault(str(step.target.parent), {})[step.target.name] = names[directory].pop(name)
            case "unlink":
                del names[directory][name]
            case "fsync_directory":
                durable_names[path] = dict(names.get(path, {}))
            case unknown:
                raise ValueError(f"Recorded step {unknown!r} of {path} is unknown: record again with this version.")
    return names, durable_names


def _build(names: _Names, base: Path, target: Path, *, synced_only: bool) -> None:
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for directory in sorted(names):
        place = f"{target}{directory.removeprefix(str(base))}"
        if not os.path.isdir(place):
            continue  # The crash lost the name of this directory, and so everything in it.
        for name, file in sorted(names[directory].items()):
            if file is None:
                os.mkdir(f"{place}/{name}")
            else:
                with open(f"{place}/{name}", "wb") as made:
                    made.write(file.content[: file.durable_bytes] if synced_only else file.content)
