"""Leases on an object store: one object for each holder, overwritten if it still has the version that was read.

No object is deleted when its holder ends: some stores ignore the condition of a deletion, which could then hit a lease
that another process has just acquired. A released lease stays until housekeeping deletes old leases.
"""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.storage.leases.contract import StoredLease, lease_name
from pulsar_on_spark.storage.objects.contract import Created, ObjectStore, Version

_SUFFIX: Final = ".json"


class LeaseObjects:
    """The leases under one prefix.

    Args:
        objects: The root's objects.
        prefix: The prefix, without a slash at its end.
        url: The URL of the prefix, for messages.
    """

    def __init__(self, objects: ObjectStore, prefix: str, url: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._read: dict[str, Version | None] = {}
        self._listed: dict[str, tuple[Version, StoredLease]] = {}
        self.place = url

    def prepare(self, now_s: float) -> None:
        """Do nothing: objects need no folder, and are never unfinished."""

    def read(self, holder: str) -> bytes | None:
        """Return the object's content, None if there is no object; remember its version for `write`."""
        fetched = self._objects.fetch(self._key(holder))
        self._read[holder] = None if fetched is None else fetched.version
        return None if fetched is None else fetched.content

    def read_all(self) -> list[StoredLease]:
        """Return the leases of all objects; only objects that have changed since the last call are fetched."""
        listed: dict[str, tuple[Version, StoredLease]] = {}
        for found in self._objects.list_after(self._prefix):
            known = self._listed.get(found.key)
            if known is not None and known[0] == found.version:
                listed[found.key] = known
            elif (fetched := self._objects.fetch(found.key)) is not None:
                name = found.key.rpartition("/")[2].removesuffix(_SUFFIX)
                listed[found.key] = fetched.version, StoredLease(name, fetched.content, found.written_s)
        self._listed = listed
        return [lease for _, lease in listed.values()]

    def write(self, holder: str, token: str, content: bytes) -> bool:
        """Write the object if it still has the version that was read, and return True; return False otherwise."""
        read = self._read.get(holder)
        if read is None:
            answer = self._objects.create(self._key(holder), content)
            written = answer.version if isinstance(answer, Created) else None
        else:
            written = self._objects.replace(self._key(holder), content, read)
        if written is None:
            return False
        self._read[holder] = written
        return True

    def remove(self, holder: str, token: str, released: bytes) -> None:
        """Overwrite the object with a released lease."""
        self.write(holder, token, released)

    def discard_unfinished(self, holder: str, token: str) -> None:
        """Do nothing: a failed write leaves no object."""

    def _key(self, holder: str) -> str:
        return f"{self._prefix}/{lease_name(holder)}{_SUFFIX}"


def sweep_lease_objects(objects: ObjectStore, prefix: str, before_s: float) -> int:
    """Delete the leases under a prefix that were last renewed before a time.

    Args:
        objects: The root's objects.
        prefix: The prefix of all groups.
        before_s: The time, in seconds since 1970, by the store's clock.

    Returns:
        The number of deleted objects.
    """
    swept = 0
    for key in [listed.key for listed in objects.list_after(prefix) if listed.written_s < before_s]:
        looked = objects.head(key)  # it may have been acquired since
        if looked is not None and looked.written_s < before_s:
            objects.delete(key)
            swept += 1
    return swept
