"""A table's log on an object store, whose objects are whole and durable as soon as they exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext

from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.storage.objects.contract import ObjectStore


class ObjectLog:
    """A table under a URL.

    Args:
        objects: The table's objects.
        url: The table's URL.
        is_shared: True if other programs may write to the table, too.
    """

    boot: str | None = None

    def __init__(self, objects: ObjectStore, url: str, *, is_shared: bool = False) -> None:
        self.objects = objects
        self.place = url
        self.is_shared = is_shared

    def require_writable(self) -> None:
        """Do nothing: the store itself refuses a write that is not possible."""

    def sync(self) -> None:
        """Do nothing: objects are durable."""

    def sync_files(self, keys: Iterable[str]) -> None:
        """Do nothing: objects are durable."""

    def housekeeping(self) -> AbstractContextManager[bool]:
        """Exclude no process, because several may clean up at once (docs/adr/0017)."""
        return nullcontext(True)

    def note_reported(self, version: int) -> None:
        """Do nothing: the store loses no objects."""

    def reported_version(self) -> int:
        """Return -1: reported versions are not noted."""
        return -1

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Return False: objects do not vanish."""
        return False

    def note_whole(self) -> None:
        """Do nothing: there are no marks of failed syncs."""

    def set_aside(self, keys: Collection[str]) -> str:
        """Raise `MetadataError`; never called, because `lost_names` is never True."""
        raise MetadataError(f"The objects {', '.join(sorted(keys))} of {self.place} cannot be set aside.")

    def sweep(self) -> None:
        """Do nothing: an object is whole or absent."""
