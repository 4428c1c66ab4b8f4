"""The contract between a table's log and the folder or object store in which it is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from pulsar_on_spark.storage.objects.contract import ObjectStore


class LogStore(Protocol):
    """The objects of one table, and the operations that differ between a local folder and an object store."""

    @property
    def objects(self) -> ObjectStore:
        """The objects, with keys relative to the table."""

    @property
    def place(self) -> str:
        """The table's path or URL, for errors and the log."""

    @property
    def is_shared(self) -> bool:
        """True if other programs may write to the table, too."""

    @property
    def requests_at_once(self) -> int:
        """The number of objects to read at once, where several will be read (`reading_ahead`)."""

    @property
    def boot(self) -> str | None:
        """The id of the machine's current boot, for new entries; None if a power cut cannot undo entries.

        Raises:
            MetadataError: the id cannot be read.
        """

    def require_writable(self) -> None:
        """Check that commits can be written.

        Raises:
            MetadataError: the disk is full or read-only, or this process may not write to it.
        """

    def sync(self) -> None:
        """Make all entries durable that this process has seen, so that they survive a power cut.

        Raises:
            UnsyncedFolderError: the entries may not survive a power cut.
        """

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Keep other processes from cleaning up or repairing the log during the block.

        The context yields True; False if another process is doing so, in which case the caller must not.
        """

    def note_reported(self, version: int) -> None:
        """Store that an entry is durable and about to be reported to the caller of a commit."""

    def reported_version(self) -> int:
        """Return the version of a reported entry, which the log cannot lack; -1 if none is known.

        There may be later reported entries.
        """

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Return True if a power cut may have removed unreported entries that were written in these boots."""

    def note_whole(self) -> None:
        """Store that the log was found complete, which ends the effect of failed syncs of earlier boots."""

    def set_aside(self, keys: Collection[str]) -> str:
        """Move objects out of the table, the newest first, and return the path of the folder that has them now."""

    def sweep(self) -> None:
        """Delete unfinished files that killed writers have left behind."""


class SharedLog(LogStore, Protocol):
    """A log to which other programs may write, too."""

    def sync_files(self, keys: Iterable[str]) -> None:
        """Make all entries durable, and the given files of other programs, if they exist.

        Raises:
            UnsyncedFolderError: the entries or files may not survive a power cut.
        """
