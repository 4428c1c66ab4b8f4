"""Leases in folders and on object stores: the contract, and what each kind adds to it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.identity import IDENTITY_NAME
from pulsar_on_spark.storage.leases.contract import LeaseStore
from pulsar_on_spark.storage.leases.files import LeaseFiles
from pulsar_on_spark.storage.leases.objects import LeaseObjects, sweep_lease_objects
from pulsar_on_spark.storage.objects.contract import ObjectStore
from pulsar_on_spark.storage.objects.remote import RemoteObjects
from pulsar_on_spark.testing.lease_store_contract import LeaseStoreContract, OpenStore
from pulsar_on_spark.testing.object_store_contract import created
from pulsar_on_spark.testing.s3_faults import Fault, S3Faults
from tests.kit.memory_objects import MemoryObjects
from tests.kit.s3_server import S3Server

FAULTY_PART = 1 / 3


def opener(objects: ObjectStore) -> OpenStore:
    def open_store(group: str) -> LeaseStore:
        return LeaseObjects(objects, f"leases/{group}", f"memory/{group}")

    return open_store


class TestFiles(LeaseStoreContract):
    @pytest.fixture
    def open_store(self, memory_path: Path) -> OpenStore:
        def open_store(group: str) -> LeaseStore:
            store = LeaseFiles(memory_path / "leases" / group)
            store.prepare(time.time())
            return store

        return open_store


class TestObjects(LeaseStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return opener(MemoryObjects())


@pytest.mark.long
@pytest.mark.parametrize("fault", Fault)
class TestS3WithFaults(LeaseStoreContract):
    @pytest.fixture
    def open_store(self, s3_server: S3Server, faults: S3Faults, fault: Fault) -> OpenStore:
        bucket = s3_server.make_bucket()
        created(RemoteObjects(bucket, s3_server.options()), IDENTITY_NAME, b"identity")
        faults.decide = lambda request: fault if random.Random(request.number + 1).random() < FAULTY_PART else None
        return opener(RemoteObjects(bucket, s3_server.options(faults.url)))


def test_an_object_is_not_written_over_a_later_process(memory_path: Path) -> None:
    """A file is: there, the holder's next look tells it."""
    open_store = opener(MemoryObjects())
    first, second = open_store("group"), open_store("group")
    for process in (first, second):
        process.read("a")
    assert first.write("a", "first", b"1")
    assert not second.write("a", "second", b"2")
    assert second.read("a") == b"1"


def test_an_observer_gets_only_what_has_changed() -> None:
    class Counted(MemoryObjects):
        fetched = 0

        def fetch(self, key: str) -> object:  # type: ignore[override]
            self.fetched += 1
            return super().fetch(key)

    objects = Counted()
    open_store = opener(objects)
    holder, observer = open_store("group"), open_store("group")
    for name in ("a", "b", "c"):
        holder.read(name)
        holder.write(name, "token", b"1")
    assert len(observer.read_all()) == 3
    objects.fetched = 0
    holder.write("b", "token", b"2")
    assert sorted(lease.content for lease in observer.read_all()) == [b"1", b"1", b"2"]
    assert objects.fetched == 1


def test_old_leases_are_swept(memory_path: Path) -> None:
    objects = MemoryObjects()
    store = opener(objects)("group")
    store.read("a")
    store.write("a", "token", b"1")
    assert sweep_lease_objects(objects, "leases", time.time() - 60) == 0
    assert sweep_lease_objects(objects, "leases", time.time() + 60) == 1
    assert store.read_all() == []
    assert store.read("a") is None
    assert store.write("a", "token", b"2"), "a suspended holder acquires it again"


def test_a_folder_of_leases_that_cannot_be_read_is_named(memory_path: Path) -> None:
    store = LeaseFiles(memory_path / "leases")
    store.prepare(time.time())
    store.read("a")
    store.write("a", "token", b"1")
    file = store.path("a")
    os.unlink(file)
    file.mkdir()
    with pytest.raises(StorageError, match=r"Leases in .* cannot be read .*make them readable"):
        store.read_all()
