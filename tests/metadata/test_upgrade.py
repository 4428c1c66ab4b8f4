"""A root that format 1 wrote, kept from the last version that did: read as it is, upgraded, used."""

from __future__ import annotations

import fcntl
import os
import tarfile
import time
from pathlib import Path

import pulsar
import pytest
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.metadata.current import current
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log.entry import entry_key
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.metadata.upgrade import upgrade_tables
from pulsar_on_spark.model.errors import CorruptMetadataError, FormatVersionError, MetadataError
from pulsar_on_spark.root import Root
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.kit.running_broker import RunningBroker

KEPT = Path(__file__).parent / "data" / "root-format-1.tar.gz"
"""Eight topics with twenty messages each and a Shared subscription, all sealed; 37 commits, a checkpoint."""


@pytest.fixture
def kept(memory_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        archive.extractall(memory_path, filter="data")
    return memory_path / "root-format-1"


def _rows(root: Path) -> list[dict[str, object]]:
    hidden = ("seq", "token", "cas_keys", "committed_at")
    rows = current(root, "main").drop_columns(hidden).to_pylist() + current(root, "cursors").to_pylist()
    return sorted((row for row in rows if row.get("kind") != "root"), key=str)


def _upgrade(root: Path) -> str:
    done = CliRunner().invoke(app, ["upgrade", str(root)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_root_of_format_1_can_be_read_and_not_written(kept: Path) -> None:
    root = Root.open(kept)
    assert len(root.topics()) == 8
    assert root.store.root_record.format_version == 1
    change = Change([TenantRecord(tenant="t")], keys={"tenant/t": None})
    with pytest.raises(FormatVersionError, match=r"format version 1, .* only read: run `pulsarpy upgrade"):
        root.store.commit(lambda view: change)
    with pytest.raises(FormatVersionError, match="pulsarpy upgrade"):
        root.create_topic("new")


def test_an_upgraded_root_has_the_same_rows_keys_and_cursors(kept: Path) -> None:
    before, rows = MetadataStore(kept), _rows(kept)
    assert _upgrade(kept) == f"Upgraded {kept} to format version 2.\n"
    assert _rows(kept) == rows
    after = MetadataStore(kept)
    assert after.root_record.format_version == 2
    assert after.root_record.cluster_id == before.root_record.cluster_id
    former = before._main._keys
    assert after._main._keys == {**former, "root": former["root"] + 1}
    assert {file.crc is None for file in after._main.files} == {False}
    assert _upgrade(kept) == f"The root {kept} has format version 2 already.\n"


def test_a_broker_serves_what_was_there_before_the_upgrade(kept: Path) -> None:
    _upgrade(kept)
    with RunningBroker(kept) as broker:
        client = new_client(broker.url)
        consumer = client.subscribe("orders-3", "audit", pulsar.ConsumerType.Shared)
        client.create_producer("orders-3").send(b"new")
        received = sorted(int(consumer.receive(WAIT_MS).data().split()[-1]) for _ in range(12))
        assert received == [7, 8, 9, 10, *range(12, 20)]
        assert consumer.receive(WAIT_MS).data() == b"new"
        client.close()
    assert Root.open(kept).maintain().problems == ()


@pytest.mark.parametrize("steps", range(1, 14))
def test_an_upgrade_that_was_killed_is_completed(kept: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    rows, link, linked = _rows(kept), os.link, 0

    def end(source: Path, target: Path) -> None:
        nonlocal linked
        linked += 1
        if linked == steps:
            raise KeyboardInterrupt
        link(source, target)

    with monkeypatch.context() as ending:
        ending.setattr(os, "link", end)
        try:
            upgrade_tables(kept)
        except KeyboardInterrupt:
            pass
        else:
            assert linked < steps
    _upgrade(kept)
    assert _rows(kept) == rows
    assert MetadataStore(kept).root_record.format_version == 2


def test_a_process_of_format_1_keeps_the_root_from_being_upgraded(kept: Path) -> None:
    """It has a shared lock on the table, and would go on committing."""
    held = os.open(kept / "metadata" / "main", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_SH)
    with pytest.raises(MetadataError, match=r"process of an older version has .*/metadata/main open: stop"):
        upgrade_tables(kept)
    os.close(held)
    assert upgrade_tables(kept)


def test_nothing_writes_to_a_root_of_format_1(kept: Path) -> None:
    before = sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock")
    store = MetadataStore(kept)
    row = CursorRow("t", "s", 0, 1, 1, 1, 1)
    for write in (store.fold_and_checkpoint, store.vacuum, lambda: store.append_cursors([row])):
        with pytest.raises(FormatVersionError, match="pulsarpy upgrade"):
            write()
    assert "pulsarpy upgrade" in " ".join(Root.open(kept).maintain().problems)
    assert sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock") == before


def test_a_gap_in_a_root_of_format_1_is_damage(kept: Path) -> None:
    log = kept / "metadata" / "cursors" / "_delta_log"
    for name in (Path(entry_key(3)).name, "_last_checkpoint", f"{6:020d}.checkpoint.parquet"):
        (log / name).unlink()
    before = sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock")
    with pytest.raises(CorruptMetadataError, match=f"{entry_key(3)} is missing"):
        MetadataStore(kept).cursors()
    assert sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock") == before


def test_a_damaged_root_is_not_upgraded(kept: Path) -> None:
    (file, *_) = sorted((kept / "metadata" / "main").glob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    before = sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock")
    with pytest.raises(CorruptMetadataError, match=f"{file.name} is damaged, and nothing was changed"):
        upgrade_tables(kept)
    assert sorted(str(path) for path in (kept / "metadata").rglob("*") if path.name != "lock") == before


def test_a_root_in_use_is_not_upgraded(kept: Path) -> None:
    lease = kept / "leases" / "group" / "holder.json"
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.write_text("{}")
    done = CliRunner().invoke(app, ["upgrade", str(kept)])
    assert done.exit_code == 1
    assert "stop brokers and Spark jobs" in str(done.exception)
    os.utime(lease, (time.time() - 31,) * 2)
    _upgrade(kept)
