"""The probe refuses each store that breaks a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_on_spark.model.errors import ObjectsUnreachableError, UnsuitableStoreError
from pulsar_on_spark.storage.objects.contract import Created, Fetched, Listed, Version
from pulsar_on_spark.storage.objects.probe import probe
from tests.kit.memory_objects import MemoryObjects


class IgnoresIfNoneMatch(MemoryObjects):
    def create(self, key: str, content: bytes) -> Created:
        return Created(self._write(key, content))


class IgnoresIfMatch(MemoryObjects):
    def replace(self, key: str, content: bytes, version: Version) -> Version:
        return self._write(key, content)


class RefusesIfMatch(MemoryObjects):
    def replace(self, key: str, content: bytes, version: Version) -> None:
        return None


class ListsLate(MemoryObjects):
    def list_after(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return iter(())


class Caches(MemoryObjects):
    """Reads once, and answers from memory later."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[str, bytes | None] = {}

    def fetch_range(self, key: str, start: int, end: int) -> bytes | None:
        self._cache.setdefault(key, b"1")
        return self._cache[key]


class NeverDeletes(MemoryObjects):
    def delete(self, key: str) -> None:
        pass


class HasEverything(MemoryObjects):
    def fetch(self, key: str) -> Fetched | None:
        return super().fetch(key) or Fetched(b"", Version("0"))


class ForbidsMissing(MemoryObjects):
    """As S3 answers 403 for a missing object to a reader without the right to list."""

    def fetch(self, key: str) -> Fetched | None:
        found = super().fetch(key)
        if found is None:
            raise ObjectsUnreachableError("s3://bucket could not read x in 1 s (HTTP status 403).")
        return found


@pytest.mark.parametrize(
    ("store", "rule"),
    [
        (IgnoresIfNoneMatch(), "If-None-Match is ignored"),
        (IgnoresIfMatch(), "If-Match is ignored"),
        (RefusesIfMatch(), "If-Match is refused"),
        (ListsLate(), "a listing misses an object"),
        (Caches(), "an overwritten object keeps its old content"),
        (NeverDeletes(), "a deleted object can still be read"),
        (HasEverything(), "an object that was never written can be read"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_store_that_breaks_a_rule_is_refused_by_name(store: MemoryObjects, rule: str) -> None:
    with pytest.raises(UnsuitableStoreError, match=f"^s3://bucket cannot hold a root: {rule}"):
        probe(store, "s3://bucket")


def test_a_reader_without_the_right_to_list_is_told_of_it() -> None:
    with pytest.raises(ObjectsUnreachableError, match="grant both"):
        probe(ForbidsMissing(), "s3://bucket")


def test_a_refused_store_keeps_nothing_of_the_probe() -> None:
    store = RefusesIfMatch()
    with pytest.raises(UnsuitableStoreError):
        probe(store, "s3://bucket")
    assert list(store.list_after("")) == []
