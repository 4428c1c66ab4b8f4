"""Versions of keys, looked up one by one or read from the log together, equal those of delta-rs."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log.key_versions import KeyVersions, LogEntries
from pulsar_on_spark.metadata.records import RootRecord, TenantRecord
from pulsar_on_spark.metadata.store import FORMAT_VERSION, Change, MetadataStore

ROOT = RootRecord(format_version=FORMAT_VERSION, cluster_id="c", quorum="3/3/2")
KEYS = [f"tenant/t{number}" for number in range(200)]


def _commit(store: MetadataStore, first: int, end: int) -> None:
    wanted = range(first, end)
    puts = [TenantRecord(tenant=f"t{number}") for number in wanted]
    store.commit(lambda view: Change(puts=puts, keys={KEYS[number]: None for number in wanted}))


@pytest.mark.parametrize("commits", [1, 70])
def test_many_keys_have_the_versions_that_delta_knows(tmp_path: Path, commits: int) -> None:
    """70 commits make a checkpoint, and entries behind it."""
    store = MetadataStore.create(tmp_path / "root", [ROOT])
    _commit(store, 0, 120)
    for _ in range(commits):
        _commit(store, 50, 55)
    directory = tmp_path / "root" / "metadata" / "main"
    assert (directory / "_delta_log" / "_last_checkpoint").exists() == (commits > 64)
    asked = KeyVersions(directory, LogEntries(directory))
    table = DeltaTable(directory)
    known = {key: table.transaction_version(key) for key in KEYS}
    assert {key: asked.get(table, key) for key in KEYS} == known
    _commit(store, 110, 130)
    table = DeltaTable(directory)
    known = {key: table.transaction_version(key) for key in KEYS}
    assert {key: asked.get(table, key) for key in KEYS} == known
    assert (known[KEYS[52]], known[KEYS[115]], known[KEYS[125]], known[KEYS[150]]) == (commits + 1, 2, 1, None)


def test_delta_is_not_asked_for_each_of_many_keys(tmp_path: Path) -> None:
    class Counting:
        def __init__(self, table: DeltaTable) -> None:
            self.table, self.asked = table, 0

        def version(self) -> int:
            return self.table.version()

        def transaction_version(self, key: str) -> int | None:
            self.asked += 1
            return self.table.transaction_version(key)

    store = MetadataStore.create(tmp_path / "root", [ROOT])
    _commit(store, 0, 120)
    directory = tmp_path / "root" / "metadata" / "main"
    table = Counting(DeltaTable(directory))
    asked = KeyVersions(directory, LogEntries(directory))
    for key in KEYS:
        asked.get(table, key)  # type: ignore[arg-type]
    assert table.asked <= 32
