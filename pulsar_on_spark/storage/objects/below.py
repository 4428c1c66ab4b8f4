"""The objects of a store whose keys begin with a prefix, as an object store of their own."""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, ObjectStore, Upload, Version


class ObjectsBelow:
    """A part of an object store. `confirm_absent` relies on the identity of the whole store.

    Args:
        store: The store.
        prefix: The prefix: whole names joined by `/`, without a slash at the end.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def create(self, key: str, content: bytes) -> Created | Exists:
        """Create the object in the store; returns `Exists` if another writer's object has the key."""
        return self._store.create(self._full(key), content)

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        """Replace the object in the store; returns its new version, None if it has another version now."""
        return self._store.replace(self._full(key), content, version)

    def fetch(self, key: str) -> Fetched | None:
        """Return the object from the store; None if there is none."""
        return self._store.fetch(self._full(key))

    def fetch_range(self, key: str, start: int, end: int) -> bytes | memoryview | None:
        """Return bytes [start, end) of the object; None if there is none."""
        return self._store.fetch_range(self._full(key), start, end)

    def confirm_absent(self, key: str) -> bool:
        """Return True if the object is absent and the whole store has its identity; False if the object exists."""
        return self._store.confirm_absent(self._full(key))

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Yield the store's objects below both prefixes."""
        below = self._full(prefix) if prefix else self._prefix
        for listed in self._store.list_after(below, self._full(after) if after else ""):
            yield listed._replace(key=listed.key[len(self._prefix) + 1 :])

    def head(self, key: str) -> Listed | None:
        """Return the object's key, size and version; None if there is no object."""
        listed = self._store.head(self._full(key))
        return None if listed is None else listed._replace(key=key)

    def upload(self, key: str) -> Upload:
        """Return a new upload to the store."""
        return self._store.upload(self._full(key))

    def delete(self, key: str) -> None:
        """Delete the object from the store."""
        self._store.delete(self._full(key))

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}"
