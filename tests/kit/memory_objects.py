"""An object store in memory: the smallest backend that passes the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count

from pulsar_on_spark.storage.objects.contract import Created, Exists, Fetched, Listed, Upload, Version


class MemoryObjects:
    """Objects by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions = count()
        self._objects: dict[str, Fetched] = {}
        self._written_s: dict[str, float] = {}

    def create(self, key: str, content: bytes) -> Created | Exists:
        with self._lock:
            if (present := self._objects.get(key)) is None:
                return Created(self._write(key, content))
        return Created(present.version) if present.content == content else Exists(present.content, present.version)

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        with self._lock:
            present = self._objects.get(key)
            return None if present is None or present.version != version else self._write(key, content)

    def fetch(self, key: str) -> Fetched | None:
        return self._objects.get(key)

    def fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        present = self._objects.get(key)
        return None if present is None else present.content[start:end]

    def confirm_absent(self, key: str) -> bool:
        return key not in self._objects

    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        with self._lock:
            keys = sorted(self._objects, key=str.encode)
        for key in keys:
            if (not prefix or key.startswith(f"{prefix}/")) and key.encode() > after.encode():
                content, version = self._objects[key]
                yield Listed(key, len(content), version, self._written_s[key])

    def head(self, key: str) -> Listed | None:
        present = self._objects.get(key)
        return None if present is None else Listed(key, len(present.content), present.version, self._written_s[key])

    def upload(self, key: str) -> Upload:
        return MemoryUpload(self, key)

    def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    def _write(self, key: str, content: bytes) -> Version:
        version = Version(str(next(self._versions)))
        self._objects[key] = Fetched(content, version)
        self._written_s[key] = time.time()
        return version


class MemoryUpload:
    """An object that is being written."""

    def __init__(self, objects: MemoryObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._pieces: list[bytes] = []

    def write(self, content: bytes) -> None:
        self._pieces.append(content)

    def finish(self) -> None:
        self._objects.create(self._key, b"".join(self._pieces))

    def abandon(self) -> None:
        self._pieces.clear()
