"""A storage path in a directory that may hang, such as one of a network file system: each call ends in bounded time.

The operating system waits without a limit for a server that is away. So each call runs in a thread of its own. If a
call takes too long, further calls for the same thing, such as a file, fail at once until that call has ended. The call
may still have its effect, like a call of a process that was killed: a file that is written late is garbage.

A call that hangs also begins a check of the path. Until the check has ended, the path counts as unreachable and all
calls fail at once, so a directory that hangs occupies few threads. If only a file hangs, the check ends and other calls
continue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId, SegmentName
from pulsar_on_spark.storage.daemon_calls import start_call
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.segment_files import FileSink, FileSource
from pulsar_on_spark.storage.storage_path import DiskSpace, StoragePath, StoredFile

ANSWER_WITHIN_S: Final = 30.0
"""Time after which a call that has not ended counts as hanging, in seconds."""
MAX_HANGING: Final = 16
"""Number of hanging calls at which a path counts as unreachable, because each of them occupies a thread."""
_CHECKED_WITHIN_S: Final = 1.0
"""Time in seconds that a hanging call waits for the check of the path: if the path is well, other calls continue."""
_LISTED_AT_ONCE: Final = 500
_IDENTITY: Final = "its identity"
_hanging: Final[dict[tuple[int, Path], dict[str, Future[Any]]]] = {}
"""The calls that took too long, and the check of the path that they began.

Keys are a process id and a directory, then the thing that the call uses, such as a file."""

_T = TypeVar("_T")
_H = TypeVar("_H", FileSink, FileSource)


class _HangsError(StoragePathError):
    """A call has taken too long, and may still be running.

    Attributes:
        call: The future of the call.
    """

    def __init__(self, message: str, call: Future[Any]) -> None:
        super().__init__(message)
        self.call = call


@dataclass(frozen=True, slots=True)
class BoundedPath:
    """A storage path with a time limit for each call; `StoragePath` describes the methods in full.

    Attributes:
        path: The storage path without time limits.
    """

    path: LocalPath

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path_id(self) -> PathId:
        """The path's id in the root."""
        return self.path.path_id

    @property
    def place(self) -> Path:
        """The path's directory."""
        return self.path.place

    @property
    def is_elsewhere(self) -> bool:
        """True if the path is on another host."""
        return self.path.is_elsewhere

    @property
    def cluster_id(self) -> str:
        """The id of the root's cluster, by which a path belongs to a root."""
        return self.path.cluster_id

    @property
    def label(self) -> str:
        """The label of the path's rack; "" without a label."""
        return self.path.label

    @property
    def weight(self) -> int:
        """The path's share of new files."""
        return self.path.weight

    @property
    def is_given_up(self) -> bool:
        """True if an operator declared the disk lost."""
        return self.path.is_given_up

    def create(self, files: FileOps = OS_FILES, mode: int | None = None) -> None:
        """Make the directory and its identity file; None as `mode` keeps the directory's permissions."""
        self._call("its creation", partial(self.path.create, files, mode))

    def check(self, files: FileOps = OS_FILES) -> None:
        """Check that the directory has the identity file of this path."""
        self._call(_IDENTITY, partial(self.path.check, files))

    def hide_identity(self) -> bool:
        """Rename the identity file, and return True; return False if the directory is not this path.

        A call that ends too late is undone, because its caller does not retire the path then.
        """

        def undo(is_hidden: bool) -> None:
            if is_hidden:
                self.path.show_identity()

        return self._call("the name of its identity", self.path.hide_identity, undo)

    def show_identity(self) -> None:
        """Rename the identity file back."""
        self._call("the name of its identity", self.path.show_identity)

    def measured(self) -> BoundedPath:
        """Return the path with its free bytes as weight; unchanged if they cannot be measured."""
        try:
            return BoundedPath(self._call("its free space", self.path.measured))
        except StoragePathError:
            return self

    def space(self) -> DiskSpace:
        """Return the size and the free bytes of the file system."""
        return self._call("its free space", self.path.space)

    def try_write(self) -> None:
        """Write and sync a small file."""
        self._call("a trial write", self.path.try_write)

    def write_segment(self, name: SegmentName, files: FileOps = OS_FILES, *, stays_cached: bool = True) -> _Sink:
        """Return a new copy, which has a temporary name until it is sealed."""
        begin = partial(self.path.write_segment, name, files, stays_cached=stays_cached)
        return _Sink(self.path, name, self._call(_named(name), begin, _close))

    def open_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> _Source:
        """Check the path, and return the copy, open for reading."""
        begin = partial(self.path.open_segment, name, files)
        return _Source(self.path, name, self._call(_named(name), begin, _close))

    def has_segment(self, name: SegmentName) -> bool:
        """Return True if the copy's file exists."""
        return self._call(_named(name), partial(self.path.has_segment, name))

    def segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Check the path, and return its segment files and sidecars."""
        self.check()
        return self.unchecked_segment_files(now_s)

    def unchecked_segment_files(self, now_s: float) -> Iterator[StoredFile]:
        """Yield the segment files and sidecars without checking the path."""
        listing = self.path.unchecked_segment_files(now_s)
        while some := self._call("its listing", lambda: list(islice(listing, _LISTED_AT_ONCE))):
            yield from some

    def delete_segment(self, name: SegmentName, files: FileOps = OS_FILES) -> int:
        """Unlink the copy's files, sync their directory, and return the number of files."""
        return self._call(_named(name), partial(self.path.delete_segment, name, files))

    def delete_stored(self, stored: StoredFile) -> bool:
        """Unlink the file; returns False if it did not exist."""
        return self._call(_named(stored.name), partial(self.path.delete_stored, stored))

    def _call(self, what: str, call: Callable[[], _T], if_late: Callable[[_T], None] = lambda result: None) -> _T:
        return _call_in_time(self.path, what, call, if_late)


class _Open(Generic[_H]):
    """An open file. After a call that took too long, the file is closed when that call has ended."""

    def __init__(self, path: LocalPath, name: SegmentName, file: _H) -> None:
        self._path = path
        self._name = name
        self._file: _H = file
        self._is_closed = False

    def close(self) -> None:
        """Close the file."""
        self._end(self._file.close)

    def _call(self, call: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise StoragePathError(
                f"{self._path.directory}: {_named(self._name)} is closed, because a call has taken too long: try again."
            )
        try:
            return _call_in_time(self._path, _named(self._name), call)
        except _HangsError as error:
            self._is_closed = True
            error.call.add_done_callback(lambda _: self._file.close())
            raise

    def _end(self, call: Callable[[], None]) -> None:
        if not self._is_closed:
            self._is_closed = True
            wait_s = 0.0 if _hangs(self._path, _named(self._name)) else ANSWER_WITHIN_S
            wait([start_call(call, "cold-path")], wait_s)


class _Sink(_Open[FileSink]):
    """A copy that is being written."""

    is_readable = True

    def write(self, content: bytes) -> None:
        """Append bytes to the copy."""
        self._call(partial(self._file.write, content))

    def open_written(self) -> _Source:
        """Return the copy, open for reading under its temporary or final name."""
        return _Source(
            self._path, self._name, _call_in_time(self._path, _named(self._name), self._file.open_written, _close)
        )

    def seal(self, sidecar: bytes | None) -> None:
        """Make the copy durable under its final name; `sidecar` is None for a copy without one."""
        self._call(partial(self._file.seal, sidecar))

    def discard(self) -> None:
        """Close and delete the files."""
        self._end(self._file.discard)


class _Source(_Open[FileSource]):
    """A copy that is open for reading."""

    @property
    def location(self) -> str:
        """The copy's path."""
        return self._file.location

    @property
    def group_bytes(self) -> int:
        """The number of bytes to read at once."""
        return self._file.group_bytes

    def size_bytes(self) -> int:
        """Return the file's length in bytes."""
        return self._call(self._file.size_bytes)

    def sidecar(self) -> bytes:
        """Return the content of the sidecar file."""
        return self._call(self._file.sidecar)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing, because the operating system reads ahead."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`, and return the number of bytes read."""
        return self._call(partial(self._file.read_into, offset, target))


def in_time(path: StoragePath, call: Callable[[], _T]) -> _T:
    """Return the result of a call that uses a path's directory or URL, in bounded time if it is a `BoundedPath`.

    Raises:
        StoragePathError: the call has not ended in time, or an earlier one has not ended yet.
    """
    return _call_in_time(path.path, "an object", call) if isinstance(path, BoundedPath) else call()


def _call_in_time(
    path: LocalPath, what: str, call: Callable[[], _T], if_late: Callable[[_T], None] = lambda result: None
) -> _T:
    """Return the result of a call, or raise its error.

    Args:
        path: The path.
        what: The thing in the directory that the call uses, such as a file, for errors and for the limit on the thing.
        call: The call.
        if_late: Called with the result of a call that took too long.

    Raises:
        StoragePathError: the call has not ended in time, or an earlier one for the same thing, or the check of the
            path, has not ended yet.
    """
    no_answer = (
        f"{path.directory} has not answered for {ANSWER_WITHIN_S:g} s ({what}): check its file system, and the server "
        "that it is on."
    )
    if _hangs(path, what):
        raise StoragePathError(no_answer)
    calling = start_call(call, "cold-path")
    if not wait([calling], ANSWER_WITHIN_S).done:

        def end(late: Future[_T]) -> None:
            with suppress(BaseException):
                if_late(late.result())

        calling.add_done_callback(end)
        _begin_check(path, what, calling)
        raise _HangsError(no_answer, calling)
    return calling.result()


def _begin_check(path: LocalPath, what: str, call: Future[Any]) -> None:
    """Remember a call that hangs, and begin a check of the path unless one is running.

    Wait for the check for up to `_CHECKED_WITHIN_S`.
    """
    hanging = _hanging_calls(path)
    hanging[what] = call
    check = hanging.get(_IDENTITY)
    if check is None:
        check = hanging[_IDENTITY] = start_call(path.check, "cold-path")
    if check is not call:
        wait([check], _CHECKED_WITHIN_S)


def _hangs(path: LocalPath, what: str) -> bool:
    hanging = _hanging_calls(path)
    return what in hanging or _IDENTITY in hanging or len(hanging) >= MAX_HANGING


def _hanging_calls(path: LocalPath) -> dict[str, Future[Any]]:
    """Return this process's calls to a directory that took too long and have not ended, by the thing that they use."""
    hanging = _hanging.setdefault((os.getpid(), path.directory), {})
    for what, call in list(hanging.items()):
        if call.done():
            hanging.pop(what, None)
    return hanging


def _named(name: SegmentName) -> str:
    return f"segment file {name}"


def _close(file: FileSink | FileSource) -> None:
    file.close()
