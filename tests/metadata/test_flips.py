"""Reads with one flipped bit in any metadata file give a metadata error or the right rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.metadata.current import current
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import TenantRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import CorruptMetadataError, MetadataError, PulsarpyError

from .conftest import ROOT_RECORD


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a checkpoint, a fold, entries behind the checkpoint, commits without rows and cursors."""
    with pytest.MonkeyPatch.context() as short:
        short.setattr("pulsar_on_spark.metadata.log.folding.LAG", 2)
        short.setattr("pulsar_on_spark.metadata.log.folding.WORTH_FILES", 3)
        root = tmp_path_factory.mktemp("flips") / "root"
        store = MetadataStore.create(root, [ROOT_RECORD])
        for number in range(10):
            record = TenantRecord(tenant=f"t{number % 4}", note=number)
            store.commit(
                lambda view, record=record: Change(puts=[record], keys={f"k/{record.tenant}": None, "all": None})
            )
            store.append_cursors([CursorRow("t", "s", number % 3, 1, number, 1, number)])
            if number == 5:
                assert store.fold_and_checkpoint()
        store.commit(lambda view: Change(deletes=[TenantRecord(tenant="t1")], keys={"k/t1": None}))
        store.commit(lambda view: Change(keys={"q/1": 41}))
    return root


def _truth(root: Path) -> tuple[object, ...]:
    """The content that a process reads when it opens the root; the same at a second read."""
    store = MetadataStore(root)
    view = store.view()
    keys = [store.key_version(key) for key in ("all", "k/t0", "k/t1", "k/t2", "k/t3", "q/1", "root", "never")]
    cursors = store.cursors().of("t", "s")
    tenants = sorted(current(root, "main", "tenant").column("body").to_pylist())
    assert len(tenants) == len(view.all(TenantRecord))
    return (
        tenants,
        store.root_record,
        view.version,
        view.all(TenantRecord),
        view.last(TenantRecord, "t1"),
        keys,
        cursors,
    )


def _flipped(root: Path, places: Iterator[tuple[Path, int]], copy: Path) -> dict[str, int]:
    """Flip one bit at a time in a copy of the root; counts what came of it."""
    truth = _truth(root)
    counts = {"truth": 0, "error": 0}
    for path, bit in places:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        file = copy / path.relative_to(root)
        content = bytearray(file.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        try:
            found = _truth(copy)
        except PulsarpyError as error:
            assert str(copy) in str(error), (path, bit, error)  # noqa: PT017 - the place is what is looked for
            counts["error"] += 1
        else:
            assert found == truth, f"bit {bit} of {path}"
            counts["truth"] += 1
    return counts


def _files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "metadata").rglob("*") if path.is_file() and "set-aside" not in path.parts)


@pytest.mark.long
def test_a_flipped_bit_in_each_file_is_an_error_or_changes_nothing(written: Path, memory_path: Path) -> None:
    chance = random.Random(5)
    places = ((path, chance.randrange(8 * path.stat().st_size)) for path in _files(written))
    counts = _flipped(written, places, memory_path / "copy")
    assert counts["error"] > 10
    assert counts["truth"] > 10


def test_users_of_the_tables_do_not_read_flipped_rows_either(written: Path, memory_path: Path) -> None:
    """A damaged checkpoint is not used: an older one, and the log behind it, say the same."""
    truth = current(written, "cursors")
    table = DeltaTable(str(written / "metadata" / "cursors"))
    read = {Path(uri).name for uri in table.file_uris()}
    for path in sorted((written / "metadata" / "cursors").rglob("*.parquet")):
        root = shutil.copytree(written, memory_path / "copy")
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 4
        (root / path.relative_to(written)).write_bytes(content)
        if path.name in read:
            with pytest.raises(MetadataError, match=str(root)):
                current(root, "cursors")
        else:
            assert current(root, "cursors").sort_by("n") == truth.sort_by("n")
        shutil.rmtree(root)


@pytest.mark.soak
def test_flipped_bits_everywhere(written: Path, memory_path: Path) -> None:
    chance = random.Random(6)
    places = (
        (path, 8 * byte + chance.randrange(8)) for path in _files(written) for byte in range(0, path.stat().st_size, 7)
    )
    _flipped(written, places, memory_path / "copy")


def test_an_open_store_reads_no_flipped_bit_in_the_commits_of_others(tmp_path: Path) -> None:
    flips = random.Random(20261123)
    root = tmp_path / "root"
    writer = MetadataStore.create(root, [ROOT_RECORD])
    for number in range(20):
        reader = MetadataStore(root)
        before = set((root / "metadata" / "main").glob("*.parquet"))
        record = TenantRecord(tenant=f"t{number}", admin_roles=("alice-role",))
        writer.commit(lambda view, record=record: Change(puts=[record], keys={f"k/{record.tenant}": None}))
        (file,) = set((root / "metadata" / "main").glob("*.parquet")) - before
        written = file.read_bytes()
        bit = flips.randrange(8 * len(written))
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(CorruptMetadataError, match=file.name):
            reader.view()
        file.write_bytes(written)
        assert reader.view().get(TenantRecord, record.tenant) == record
