from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import RootRecord, TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore

ROOT_RECORD = RootRecord(format_version=2, cluster_id="c" * 32, quorum="3/3/2")


@pytest.fixture
def root(memory_path: Path) -> Path:
    """An empty root."""
    MetadataStore.create(memory_path / "root", [ROOT_RECORD])
    return memory_path / "root"


@pytest.fixture
def store(root: Path) -> MetadataStore:
    return MetadataStore(root)


@pytest.fixture
def put() -> Callable[..., None]:
    """put(store, name, note=..., key=...): commit one record."""

    def commit(store: MetadataStore, name: str, note: object = None, key: str | None = None) -> None:
        record = TenantRecord(tenant=name, note=note)
        store.commit(lambda view: Change(puts=[record], keys={key or f"tenant/{name}": None}))

    return commit


@pytest.fixture
def short_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds leave 8 versions alone instead of 64, and housekeeping comes as often: few commits will do."""
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.LAG", 8)
    monkeypatch.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 8)
    monkeypatch.setattr("pulsar_on_spark.metadata.store._HOUSEKEEPING_ENTRIES", 8)


@pytest.fixture(scope="session")
def _ten_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ten") / "root"
    boot_id = root.with_name("boot_id")
    boot_id.write_text("00000000-of-an-earlier-start-of-the-machine")
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr("pulsar_on_spark.storage.durability._BOOT_ID", boot_id)
        store = MetadataStore.create(root, [ROOT_RECORD])
        for number in range(9):
            record = TenantRecord(tenant=f"t{number}")
            store.commit(lambda view, record=record: Change(puts=[record], keys={record.tenant: None}))
    return root


@pytest.fixture
def ten_commits(_ten_commits: Path, memory_path: Path) -> Path:
    """A root whose main table is at version 10, tenant t<n> put by version n + 2, before the machine started."""
    return shutil.copytree(_ten_commits, memory_path / "ten")


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `committing.py` (beside this file) in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("committing.py")), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
