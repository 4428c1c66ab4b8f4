"""Tests that every lease store must pass. Derive a test class from `LeaseStoreContract`, with a fixture `open_store`.

A store on S3 that also passes these tests behind `s3_faults.S3Faults`, with each fault in turn, handles lost replies
correctly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from pulsar_on_spark.storage.leases.contract import LeaseStore, lease_name

OpenStore: TypeAlias = Callable[[str], LeaseStore]
"""Function that opens the lease store of the group with the given name, as another process would open it."""
CLOCKS_APART_S = 600
"""Largest allowed difference between the store's clock and the test's clock, in seconds."""


class LeaseStoreContract:
    """Contract tests of a lease store."""

    def test_a_group_without_holders_is_empty(self, open_store: OpenStore) -> None:
        store = open_store("empty")
        assert store.read("a") is None
        assert store.read_all() == []

    def test_a_lease_is_read_as_it_was_written(self, open_store: OpenStore) -> None:
        store = open_store("group")
        store.prepare(time.time())
        for content in (b"1", b"22", b"3"):
            store.read("a")
            assert store.write("a", "token", content)
            assert open_store("group").read("a") == content

    def test_an_observer_sees_each_renewal(self, open_store: OpenStore) -> None:
        store, observer = open_store("group"), open_store("group")
        for content in (b"1", b"2"):
            for holder in ("a", "b/ü"):
                store.read(holder)
                assert store.write(holder, "token", content)
            seen = observer.read_all()
            assert {lease.name: lease.content for lease in seen} == {
                lease_name("a"): content,
                lease_name("b/ü"): content,
            }
            assert all(abs(lease.written_s - time.time()) < CLOCKS_APART_S for lease in seen)
            assert observer.read_all() == seen

    def test_groups_share_no_lease(self, open_store: OpenStore) -> None:
        first, second = open_store("first"), open_store("second")
        first.read("a")
        first.write("a", "token", b"1")
        assert second.read("a") is None
        assert second.read_all() == []

    def test_of_two_processes_of_one_holder_the_store_has_one_whole_lease(self, open_store: OpenStore) -> None:
        first, second = open_store("group"), open_store("group")
        for process in (first, second):
            process.read("a")
        assert first.write("a", "first", b"first")
        wanted = b"second" if second.write("a", "second", b"second") else b"first"
        assert open_store("group").read("a") == wanted
        second.read("a")
        assert second.write("a", "second", b"second again")
        assert first.read("a") == b"second again"

    def test_a_lease_that_has_ended_is_absent_or_released(self, open_store: OpenStore) -> None:
        store = open_store("group")
        store.read("a")
        store.write("a", "token", b"1")
        store.remove("a", "token", b"released")
        assert open_store("group").read("a") in (None, b"released")
        store.discard_unfinished("a", "token")

    def test_the_end_of_an_earlier_process_keeps_a_later_lease(self, open_store: OpenStore) -> None:
        earlier, later = open_store("group"), open_store("group")
        earlier.read("a")
        earlier.write("a", "earlier", b"earlier")
        later.read("a")
        later.write("a", "later", b"1")
        earlier.remove("a", "earlier", b"released")
        later.read("a")
        assert later.write("a", "later", b"2")
        assert open_store("group").read("a") == b"2"
