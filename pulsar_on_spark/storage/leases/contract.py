"""The contract of a store of leases: one small content for each holder of a group, overwritten with each renewal.

The content of leases and their expiry are defined in `topic.catalog.leases`. Leases need not survive a power cut,
because their holders do not survive it, either.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Protocol


class StoredLease(NamedTuple):
    """The stored lease of a holder.

    Attributes:
        name: The name under which the lease is stored, which is `lease_name` of its holder.
        content: The content of the last renewal.
        written_s: The time of the last renewal by the store's clock, in seconds since 1970.
    """

    name: str
    content: bytes
    written_s: float


class LeaseStore(Protocol):
    """The leases of one group of holders, such as the consumers of a subscription.

    Methods raise `StorageError` if the store cannot be read or written now.
    """

    @property
    def place(self) -> str:
        """The store's path or URL, for messages."""

    def prepare(self, now_s: float) -> None:
        """Create the group's folder, if leases are files, and remove unfinished files of killed processes.

        Args:
            now_s: The time, in seconds since 1970.
        """

    def read(self, holder: str) -> bytes | None:
        """Return the content of a holder's lease; None if there is no lease."""

    def read_all(self) -> list[StoredLease]:
        """Return all leases of the group."""

    def write(self, holder: str, token: str, content: bytes) -> bool:
        """Overwrite a holder's lease in one step, after `read`.

        Args:
            holder: The holder.
            token: Id of the writing process, unique among all processes that write this holder's lease.
            content: The new content, different from all earlier ones.

        Returns:
            True if the lease is written; False if another process has written it since the last `read`, so that it must
            be read again.
        """

    def remove(self, holder: str, token: str, released: bytes) -> None:
        """End a holder's lease: delete it, or overwrite it with `released` where a deletion could hit a newer lease."""

    def discard_unfinished(self, holder: str, token: str) -> None:
        """Delete the temporary file that a failed `write` left behind, if any."""


def lease_name(text: str) -> str:
    """Return a short, readable name for any text, legal in any store, and different for different texts."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
