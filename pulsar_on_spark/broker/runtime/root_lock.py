"""One broker serves a root: a lock that the kernel lets go of when its holder dies, however it dies.

The file under the lock names the holder's incarnations, in its first line, and its process. Whoever takes the lock over
knows thereby that these are dead, and need not wait for their leases to run out before it recovers the journals.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pulsar_on_spark.model.errors import BrokerRunningError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.storage.permissions import opener

_FILE: Final = "broker.lock"
_MAX_BYTES: Final = 1024


class RootLock:
    """The lock of a root, held until `release` or the end of the process; children that are spawned don't inherit it.

    Attributes:
        former: The incarnations of the holder before, as far as they were noted.
    """

    def __init__(self, root: Path) -> None:
        """Take the lock.

        Raises:
            BrokerRunningError: another broker has it.
            OSError: the file cannot be made or locked.
        """
        self._descriptor = opener(root / _FILE, os.O_RDWR | os.O_CREAT)
        incarnations, _, holder = os.read(self._descriptor, _MAX_BYTES).decode("utf-8", "replace").partition("\n")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            who = f" ({holder.strip()})" if holder.strip() else ""
            raise BrokerRunningError(
                f"The root {root} is served by another broker already{who}: stop that one, or give another root."
            ) from error
        self.former = [IncarnationId(each) for each in incarnations.split()]
        self._write(incarnations, "")

    def note(self, incarnations: Iterable[IncarnationId], url: str) -> None:
        """Name those that live as long as this lock is held; not synced: after a power cut leases decide.

        Args:
            incarnations: The broker's.
            url: Where it serves, for whoever comes in vain.
        """
        self._write(" ".join(incarnations), f" at {url}")

    def _write(self, incarnations: str, where: str) -> None:
        text = f"{incarnations}\nprocess {os.getpid()} on {socket.gethostname()}{where}\n"
        size = os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, size)

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._descriptor)
