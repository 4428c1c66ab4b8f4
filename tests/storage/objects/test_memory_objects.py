"""The contract of object stores is kept by the smallest store."""

from __future__ import annotations

import pytest

from pulsar_on_spark.storage.objects.contract import ObjectStore
from pulsar_on_spark.storage.objects.probe import probe
from pulsar_on_spark.testing.object_store_contract import ObjectStoreContract
from tests.kit.memory_objects import MemoryObjects


class TestMemoryObjects(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjects()

    def test_the_probe_accepts_it(self, store: ObjectStore) -> None:
        probe(store, "memory")
        assert list(store.list_after("")) == []
