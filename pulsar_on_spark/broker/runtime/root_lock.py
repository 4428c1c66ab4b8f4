"""The lock that lets only one broker serve a root; the kernel releases it when its holder dies for any reason.

The first line of the lock file lists the holder's incarnations, the second its process. A broker that acquires the lock
knows that these incarnations are dead, and recovers their journals without waiting for their leases to expire.
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
from pulsar_on_spark.storage.root_place import RootPlace

_FILE: Final = "broker.lock"
_MAX_BYTES: Final = 1024


class RootLock:
    """The lock of a root, held until `release` or the end of the process; child processes do not inherit it.

    Attributes:
        former: The incarnations that the previous holder noted.
    """

    def __init__(self, root: RootPlace, folder: Path) -> None:
        """Acquire the lock.

        Args:
            root: The root, for the error.
            folder: The folder of the lock file.

        Raises:
            BrokerRunningError: another broker holds it.
            OSError: the file cannot be created or locked.
        """
        self._descriptor = opener(folder / _FILE, os.O_RDWR | os.O_CREAT)
        incarnations, _, holder = os.read(self._descriptor, _MAX_BYTES).decode("utf-8", "replace").partition("\n")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            who = f" ({holder.strip()})" if holder.strip() else ""
            raise BrokerRunningError(
                f"The root {root} is served by another broker already{who}: stop that one, or give another root."
            ) from error
        self.former = [IncarnationId(incarnation) for incarnation in incarnations.split()]
        self._write(incarnations, "")

    def note(self, incarnations: Iterable[IncarnationId], url: str) -> None:
        """Write the incarnations that live as long as this lock, without a sync: after a power cut, leases decide.

        Args:
            incarnations: The broker's incarnations.
            url: The broker's URL, for the error of another broker.
        """
        self._write(" ".join(incarnations), f" at {url}")

    def _write(self, incarnations: str, where: str) -> None:
        text = f"{incarnations}\nprocess {os.getpid()} on {socket.gethostname()}{where}\n"
        size = os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, size)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
