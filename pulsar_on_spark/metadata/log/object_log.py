"""A table's log on an object store, in which each object is complete and durable as soon as it exists."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext

from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.storage.objects.contract import ObjectStore


class ObjectLog:
    """The log store of a table on an object store.

    Args:
        objects: The table's objects.
        url: The table's URL.
        is_shared: True if other programs may write to the table, too.
    """

    requests_at_once = 16
    boot: str | None = None
    """None: a power cut cannot undo entries."""

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
        """Yield True without a lock, because several processes may clean up at the same time (docs/adr/0017)."""
        return nullcontext(True)

    def note_reported(self, version: int) -> None:
        """Do nothing: the store loses no objects."""

    def reported_version(self) -> int:
        """Return -1, because reported versions are not stored."""
        return -1

    def lost_names(self, boots: Collection[str | None]) -> bool:
        """Return False, never True, because objects do not vanish."""
        return False

    def note_whole(self) -> None:
        """Do nothing, because there are no failed syncs."""

    def set_aside(self, keys: Collection[str]) -> str:
        """Raise `MetadataError`. This is never called, because `lost_names` always returns False."""
        raise MetadataError(
            f"The objects {', '.join(sorted(keys))} of {self.place} cannot be set aside on an object store: report "
            "this as a defect of pulsar_on_spark."
        )

    def sweep(self) -> None:
        """Do nothing, because an object store has no unfinished objects."""
