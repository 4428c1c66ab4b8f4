"""The locks of a root's brokers on this host; the kernel releases a lock when its holder dies for any reason.

Each broker locks a file of its own, whose lines name its incarnations, its process, and the boot of its host. If a
broker can lock another broker's file, the incarnations in it are dead, provided that the file names the current boot of
this host: on a file system that hosts share without its locks, the free lock of another host proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from typing_extensions import override

from pulsar_on_spark.model.errors import BrokerRunningError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.durability import boot_id
from pulsar_on_spark.storage.permissions import opener
from pulsar_on_spark.storage.root_place import RootPlace

ONLY: Final = "broker.lock"
"""Name of the lock file of a broker that serves its root alone."""
_ALL: Final = "broker*.lock"
_MAX_BYTES: Final = 1024
_PROBED_S: Final = 0.5
"""Time for which a lock is tried, in seconds: another broker may hold it for a moment to check if its holder lives."""


def lock_file(broker: str) -> str:
    """Return the name of a broker's lock file, in the root's folder; `broker` is the broker's id."""
    return f"broker-{broker.replace('/', '_')}.lock"


class Lock(Protocol):
    """The lock of a broker: it proves to other brokers on the host that this broker lives, and finds dead brokers."""

    @property
    def former(self) -> Sequence[IncarnationId]:
        """The incarnations of the previous holder of this lock, which is dead; empty if there was none."""

    def note(self, incarnations: Iterable[IncarnationId], url: str) -> None:
        """Publish the broker's incarnations, which live as long as this lock.

        Args:
            incarnations: The ids of the broker's incarnations.
            url: The broker's URL, for the error of another broker.
        """

    def release(self) -> None:
        """Release the lock, so that another broker can acquire it."""

    def dead_others(self) -> Mapping[OtherLock, Sequence[IncarnationId]]:
        """Return the lock files of brokers that are dead for certain, each with the broker's incarnations."""


class NoLock(Lock):
    """The lock of a broker that keeps nothing on its host: only leases show which brokers are alive."""

    @property
    @override
    def former(self) -> Sequence[IncarnationId]:
        return ()

    @override
    def note(self, incarnations: Iterable[IncarnationId], url: str) -> None:
        """Do nothing."""

    @override
    def release(self) -> None:
        """Do nothing."""

    @override
    def dead_others(self) -> Mapping[OtherLock, Sequence[IncarnationId]]:
        return {}


class BrokerLock:
    """The lock of a broker, held until `release` or the end of the process; child processes do not inherit it.

    Attributes:
        former: The incarnations of the previous holder of this lock, which is dead; empty if there was none.
    """

    def __init__(self, root: RootPlace, file: Path) -> None:
        """Acquire the lock.

        Args:
            root: The root's directory or URL, for the error.
            file: The lock file, which is created if it is missing.

        Raises:
            BrokerRunningError: another broker holds the lock.
            OSError: the file cannot be created or locked.
        """
        self._file = file
        self._descriptor = _locked(root, file)
        self.former = _read(self._descriptor).incarnations
        self._write(self.former, "")

    def note(self, incarnations: Iterable[IncarnationId], url: str) -> None:
        """Write the incarnations that live as long as this lock, without a sync: after a power cut, leases decide.

        Args:
            incarnations: The ids of the broker's incarnations.
            url: The broker's URL, for the error of another broker.
        """
        self._write(incarnations, f" at {url}")

    def _write(self, incarnations: Iterable[IncarnationId], where: str) -> None:
        text = f"{' '.join(incarnations)}\nprocess {os.getpid()} on {socket.gethostname()}{where}\n{boot_id()}\n"
        size = os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, size)

    def release(self) -> None:
        """Release the lock, so that another broker can acquire it."""
        os.close(self._descriptor)

    def others(self) -> list[OtherLock]:
        """Return the lock files of other brokers in the same folder, sorted by name."""
        return [OtherLock(file) for file in sorted(self._file.parent.glob(_ALL)) if file != self._file]

    def dead_others(self) -> dict[OtherLock, list[IncarnationId]]:
        """Return the lock files of brokers that are dead for certain, each with the broker's incarnations."""
        probed = ((lock, lock.dead()) for lock in self.others())
        return {lock: dead for lock, dead in probed if dead is not None}


@dataclass(frozen=True, slots=True)
class OtherLock:
    """The lock file of another broker.

    Attributes:
        file: The path of the lock file.
    """

    file: Path

    def dead(self) -> list[IncarnationId] | None:
        """Return the broker's incarnations if the broker is dead for certain, else None.

        None means that the broker lives, the file was deleted, or the file names another boot of the host.

        Raises:
            OSError: the file cannot be read.
        """
        with self._probed() as descriptor:
            noted = None if descriptor is None else _read(descriptor)
            return None if noted is None or noted.boot not in ("", boot_id()) else noted.incarnations

    def remove(self, incarnations: Iterable[IncarnationId]) -> None:
        """Remove the file of a dead broker, unless another broker has locked it since.

        Args:
            incarnations: The dead incarnations, all of which are recovered.

        Raises:
            OSError: the file cannot be removed.
        """
        with self._probed() as descriptor:
            if descriptor is not None and _read(descriptor).incarnations == list(incarnations):
                self.file.unlink(missing_ok=True)

    @contextmanager
    def _probed(self) -> Iterator[int | None]:
        """Hold the lock in a context that gets the file's descriptor, or None if the broker lives or has no file."""
        try:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor if _is_same(descriptor, self.file) else None
        except BlockingIOError:
            yield None
        finally:
            os.close(descriptor)


def _locked(root: RootPlace, file: Path) -> int:
    """Lock a file, and return its descriptor (errors as `BrokerLock`)."""
    deadline_s = time.monotonic() + _PROBED_S
    while True:
        descriptor = opener(file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read(descriptor).holder
            os.close(descriptor)
            if time.monotonic() >= deadline_s:
                raise BrokerRunningError(
                    f"The root {root} is served by another broker already{holder}: stop that one, or give another root."
                ) from error
            time.sleep(_PROBED_S / 10)
            continue
        if _is_same(descriptor, file):
            return descriptor
        os.close(descriptor)  # removed by another broker in between


def _is_same(descriptor: int, file: Path) -> bool:
    """Return True if the open file still has this path: no other broker has removed or replaced it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), file.stat())
    return False


@dataclass(frozen=True, slots=True)
class _Noted:
    """The content of a lock file.

    Attributes:
        incarnations: The ids of the incarnations of the broker that wrote the file.
        holder: A clause about the broker's process, for an error; "" if the file names none.
        boot: The id of the host's boot in which the file was written; "" if the file names none.
    """

    incarnations: list[IncarnationId]
    holder: str
    boot: str


def _read(descriptor: int) -> _Noted:
    text = os.pread(descriptor, _MAX_BYTES, 0).decode("utf-8", "replace")
    incarnations, holder, boot, *_ = (*text.split("\n"), "", "", "")
    clause = f" ({holder.strip()})" if holder.strip() else ""
    return _Noted([IncarnationId(each) for each in incarnations.split()], clause, boot.strip())
