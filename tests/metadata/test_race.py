"""Concurrent processes on one root: nothing is lost or doubled, and no commit costs more than the first ones."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.log.cleaning import KEEP_S
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from tests.metadata.conftest import ROOT_RECORD

pytestmark = pytest.mark.long


def _race(root: Path, spawn: Callable[..., subprocess.Popen[str]], commits: int, timeout_s: int) -> None:
    tasks = {0: ("housekeep", "vacuum"), 1: ("housekeep", "cursors"), 2: ("cursors",)}
    processes = [spawn(root, number, commits, *tasks.get(number, ())) for number in range(8)]
    reported: list[str] = []
    for process in processes:
        output, errors = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, errors
        reported += output.splitlines()
    # Each increment saw all before it: what was reported is 1, 2, 3 ... of each counter, each number once.
    counts = Counter(line.split()[0] for line in reported)
    assert sorted(reported) == sorted(f"{name} {number}" for name in counts for number in range(1, counts[name] + 1))
    assert len(reported) == 8 * commits
    store = MetadataStore(root)
    found = {record.tenant: (record.model_extra or {})["count"] for record in store.view().all(TenantRecord)}
    assert found == counts
    assert {name: store.key_version(f"key/{name}") for name in counts} == counts
    for number in (1, 2):
        assert [row.n for row in store.cursors().of("t", f"s{number}")] == [(commits - 1) // 5 * 5]
    rows = DeltaTable(str(root / "metadata" / "main")).to_pyarrow_table(columns=["kind", "id", "seq"]).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows)


def test_eight_processes_two_of_them_folding(root: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    _race(root, spawn, commits=12, timeout_s=200)


@pytest.mark.soak
def test_eight_processes_two_of_them_folding_for_long(root: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    _race(root, spawn, commits=1250, timeout_s=6000)


def _costs_ms(store: MetadataStore, commits: int) -> list[float]:
    costs = []
    for number in range(commits):
        record = TenantRecord(tenant=f"t{number % 20}", count=number)
        start = time.process_time()
        store.commit(lambda view, record=record: Change(puts=[record], keys={f"key/{record.tenant}": None}))
        costs.append((time.process_time() - start) * 1000)
    return costs


def _check_flat(root: Path, store: MetadataStore, commits: int, factor: float) -> None:
    """Medians of the CPU's time, because other work on the machine makes commits slow."""
    costs = _costs_ms(store, commits)
    early, late = statistics.median(costs[100:200]), statistics.median(costs[-100:])
    print(
        f"median of commits 100-200: {early:.1f} ms, of the last 100: {late:.1f} ms, mean {statistics.mean(costs):.1f}"
    )
    assert late < factor * early
    log = root / "metadata" / "main" / "_delta_log"
    assert len([path for path in log.glob("*.json") if path.stat().st_mtime < time.time() - KEEP_S]) < 700
    assert len(store._main.files) < 200
    start = time.process_time()
    assert len(MetadataStore(root).view().all(TenantRecord)) == 20
    assert time.process_time() - start < 5


def test_the_eight_hundredth_commit_costs_what_the_hundredth_did(memory_path: Path) -> None:
    root = memory_path / "root"
    _check_flat(root, MetadataStore.create(root, [ROOT_RECORD]), commits=800, factor=2.5)


@pytest.mark.soak
def test_the_ten_thousandth_commit_costs_what_the_hundredth_did(root: Path, store: MetadataStore) -> None:
    _check_flat(root, store, commits=10_000, factor=2.0)
