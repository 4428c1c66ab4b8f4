"""The contract between a table's log and the place where it is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from pulsar_on_spark.storage.objects.contract import ObjectStore


class LogStore(Protocol):
    """The objects of one table, and the operations that depend on the place where they are kept."""

    @property
    def objects(self) -> ObjectStore:
        """The objects, with keys relative to the table."""

    @property
    def place(self) -> str:
        """The table's path or URL, for messages."""

    @property
    def is_shared(self) -> bool:
        """True if other programs may write to the table, too."""

    @property
    def boot(self) -> str | None:
        """The id of the machine's current boot, for new entries; None if a power cut cannot undo entries.

        Raises:
            MetadataError: the id cannot be read.
        """

    def require_writable(self) -> None:
        """Check that commits can be written.

        Raises:
            MetadataError: the place is full, or this process may not write to it.
        """

    def sync(self) -> None:
        """Make all entries that this process has seen survive a power cut.

        Raises:
            UnsyncedFolderError: they may not survive it.
        """

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Keep other processes from cleaning up or repairing; yields False if one of them is doing so."""

    def note_reported(self, version: int) -> None:
        """Note that an entry is durable, and about to be reported."""

    def reported_version(self) -> int:
        """Return the version of a reported entry, which cannot be missing; maybe not the newest. -1 if unknown."""

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Return True if a power cut may have undone unreported entries that were written in these boots."""

    def note_whole(self) -> None:
        """Note that the log was found complete."""

    def set_aside(self, keys: Collection[str]) -> str:
        """Move objects out of the table, beginning with the last one; returns their new place."""

    def sweep(self) -> None:
        """Delete unfinished files that killed writers have left behind."""


class SharedLog(LogStore, Protocol):
    """A log to which other programs may write, too."""

    def sync_files(self, keys: Iterable[str]) -> None:
        """Make files that other programs wrote survive a power cut, as far as they are there, and all entries.

        Raises:
            UnsyncedFolderError: they may not survive it.
        """
