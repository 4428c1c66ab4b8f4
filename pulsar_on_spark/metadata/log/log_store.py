"""The contract between a table's log and the place where it is kept."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from pulsar_on_spark.storage.objects.contract import ObjectStore


class LogStore(Protocol):
    """The objects of one table, and what its place needs beside."""

    @property
    def objects(self) -> ObjectStore:
        """The objects, with keys relative to the table."""

    @property
    def place(self) -> str:
        """The table's path or URL, for messages."""

    @property
    def boot(self) -> str | None:
        """The boot of this machine, for new entries; None where a power cut has no effect.

        Raises:
            MetadataError: it cannot be known.
        """

    def require_writable(self) -> None:
        """Check that commits can be written.

        Raises:
            MetadataError: the place is full, or this process may not write to it.
        """

    def sync(self) -> None:
        """Make sure that all entries that this process has seen survive a power cut.

        Raises:
            UnsyncedFolderError: they may not.
        """

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Keep other processes from cleaning up or repairing; yields False if one of them does."""

    def note_reported(self, version: int) -> None:
        """Note that an entry is durable, and about to be reported."""

    def reported_version(self) -> int:
        """Return an entry that was reported, if not the newest one, and thus cannot be missing; -1 without one."""

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """True if a power cut can have hit entries that were written in these boots, but were never reported."""

    def note_whole(self) -> None:
        """Note that the log was found whole."""

    def set_aside(self, keys: Collection[str]) -> str:
        """Move objects out of the table, the last one first; returns where they are."""

    def sweep(self) -> None:
        """Delete what writers that ended have left behind, and which is no object."""
