"""History tables on storage paths: where new ones are made, and that none is hidden, doubled or shared."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.history_table import build as building
from pulsar_on_spark.history_table import retention
from pulsar_on_spark.history_table.build import BuildOptions, build
from pulsar_on_spark.history_table.pieces import write_here
from pulsar_on_spark.history_table.sql import view_statements
from pulsar_on_spark.history_table.status import statuses
from pulsar_on_spark.history_table.upkeep import keep_up
from pulsar_on_spark.metadata import features
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, RootRecord
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, StoragePathError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from pulsar_on_spark.topic.maintenance.backup.restore import restore_root
from pulsar_on_spark.topic.maintenance.files import claims
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.usage import usage
from tests.kit import messages

T = TopicName.parse("t")
LONG_AGO_S = 2 * 86_400.0


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def root(memory_path: Path) -> Root:
    made = Root.create(memory_path / "root")
    with_topic(made, "t", b"a")
    return made


@pytest.fixture
def lake(root: Root) -> Path:
    return with_path(root, "lake")


def with_topic(root: Root, name: str, *values: bytes) -> None:
    root.create_topic(name)
    messages.write(root, name, list(values))


def with_path(root: Root, name: str) -> Path:
    """Add a storage path for histories beside the root."""
    folder = root.path.with_name(name)
    storage_paths.add(root, folder, role="history")
    return folder


def topic_id(root: Root, name: str = "t") -> str:
    return catalog.require_topic(root.store.view(), TopicName.parse(name)).topic_id


def values(folder: Path) -> list[bytes]:
    found: list[bytes] = DeltaTable(folder).to_pyarrow_table().column("value").to_pylist()
    return sorted(found)


def table(place: Path, root: Root, name: str = "t") -> Path:
    record = root.store.view().get(HistoryTableRecord, topic_id(root, name))
    assert record is not None
    return place / record.table


def delete_later(root: Root, folder: Path) -> None:
    """Run a pass that finds a table without a topic, and one that is later than `GRACE_S`."""
    keep_up(root)
    assert folder.exists()
    long_ago = time.time() - LONG_AGO_S
    os.utime(folder / "_unnamed", (long_ago, long_ago))
    assert keep_up(root) == []
    assert not folder.exists()


def copied(root: Root, name: str = "copy") -> Root:
    """A copy of the root's folder, as `cp -a` makes it."""
    return Root.open(shutil.copytree(root.path, root.path.with_name(name)))


def test_new_tables_are_made_on_the_newest_path_and_stay_there(root: Root) -> None:
    build(root, T)
    places = {"t": root.path}
    for number in range(2):
        places[f"u{number}"] = with_path(root, f"lake-{number}")
        with_topic(root, f"u{number}", b"a")
        build(root, TopicName.parse(f"u{number}"))
    storage_paths.drain(root, 4)
    places["v"] = places["u0"]
    with_topic(root, "v", b"a")
    build(root, TopicName.parse("v"))
    for name, place in places.items():
        messages.write(root, name, [b"b"])
        assert build(root, TopicName.parse(name))[0].rows == 1
        assert values(table(place, root, name)) == [b"a", b"b"]
    statements = "\n".join(view_statements(root, "public/default").statements)
    assert all(str(table(place, root, name)) in statements for name, place in places.items())
    assert {each.name.rpartition("/")[2]: each.path_id for each in statuses(root.store.view())} == {
        "t": None,
        "u0": 3,
        "u1": 4,
        "v": 3,
    }
    record = root.store.view().get(RootRecord, "root")
    assert record is not None
    assert features.HISTORY_PATHS in record.features


def test_all_partitions_of_a_topic_have_one_table(root: Root) -> None:
    root.create_topic("p", 2)
    messages.write(root, "p", [b"%d" % number for number in range(20)])
    build(root, TopicName.parse("p-partition-1"))
    with_path(root, "lake")
    root.add_partitions("p", 3)
    messages.write(root, "p", [b"%d" % number for number in range(20)])
    build(root, TopicName.parse("p"))
    assert [record.path_id for record in root.store.view().all(HistoryTableRecord)] == [None]
    assert len(values(table(root.path, root, "p"))) == 40


def test_upkeep_works_on_the_path(root: Root, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEEP_REMOVED_S", -1.0)
    set_namespace_policies(root, "public/default", {"history": {}})
    assert keep_up(root) == []
    assert values(table(lake, root)) == [b"a"]
    used = usage(root)
    written = sum(file.stat().st_size for file in (lake / "history").rglob("*") if file.is_file())
    assert used.topics[0].history_bytes == used.paths[-1].by_reason["histories"] == written
    set_namespace_policies(root, "public/default", {"history": {"retentionSizeInMB": 0}})
    assert keep_up(root) == []
    assert values(table(lake, root)) == []
    assert not (root.path / "history").exists()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_path_that_is_away_is_not_a_path_without_tables(root: Root, lake: Path, is_empty: bool) -> None:
    set_namespace_policies(root, "public/default", {"history": {}})
    with_topic(root, "u", b"a")
    assert keep_up(root) == []
    lake.rename(lake.with_name("unmounted"))
    if is_empty:
        lake.mkdir()
    with_topic(root, "v", b"a")
    messages.write(root, "t", [b"b"])
    for name in ("t", "v"):
        with pytest.raises(HistoryTableError, match="mount its disk"):
            build(root, TopicName.parse(name))
    gone = table(lake, root, "u")
    root.delete_topic("u")
    assert len(keep_up(root)) == 3  # of the topics t and v, and of deleted topics
    with pytest.raises(HistoryTableError, match=r"mount its disk.*housekeeping deletes them"):
        root.delete_history("t")
    assert "mount its disk" in usage(root).paths[-1].problem
    assert not (lake / "history").exists()
    if is_empty:
        lake.rmdir()
    lake.with_name("unmounted").rename(lake)
    delete_later(root, gone)
    assert values(table(lake, root)) == [b"a", b"b"]


def test_of_two_copies_of_a_root_only_one_writes_a_table(root: Root, lake: Path) -> None:
    build(root, T)
    with_topic(root, "u", b"a")
    build(root, TopicName.parse("u"))
    copy = copied(root)
    messages.write(copy, "t", [b"of the copy"])
    with pytest.raises(HistoryTableError, match="only reads from it"):
        build(copy, T)
    copy.delete_topic("u")
    (problem,) = keep_up(copy)[1:]
    assert "only reads from it" in problem
    messages.write(root, "t", [b"b"])
    build(root, T)
    copy.delete_history("t")
    own = with_path(copy, "pond")
    build(copy, T)
    assert values(table(lake, root)) == [b"a", b"b"]
    assert values(table(own, copy)) == [b"a", b"of the copy"]
    assert table(lake, root, "u").exists()


def test_of_two_copies_with_the_same_name_the_first_to_build_has_the_path(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a clone of the whole host has it."""
    monkeypatch.setattr(claims, "named", lambda place: "the same")
    lake = with_path(root, "lake")
    build(root, T)
    copy = copied(root)
    for each in (copy, root):
        messages.write(each, "t", [b"b"])
    build(copy, T)
    with pytest.raises(HistoryTableError, match="was changed by another copy of this root"):
        build(root, T)
    assert values(table(lake, copy)) == [b"a", b"b"]


def test_a_root_that_was_moved_takes_its_path_over(root: Root, lake: Path) -> None:
    build(root, T)
    moved = Root.open(root.path.rename(root.path.with_name("moved")))
    messages.write(moved, "t", [b"b"])
    with pytest.raises(HistoryTableError, match="pulsarpy storage resume 3"):
        build(moved, T)
    storage_paths.resume(moved, 3)
    build(moved, T)
    assert values(table(lake, moved)) == [b"a", b"b"]


def test_a_path_is_given_up_with_its_histories(root: Root, lake: Path) -> None:
    build(root, T)
    storage_paths.drain(root, 3)
    for change in (storage_paths.give_up, storage_paths.retire):
        with pytest.raises(InvalidArgumentError, match="1 histories"):
            change(root, 3)
    shutil.rmtree(lake)
    storage_paths.give_up(root, 3, force=True)
    with pytest.raises(HistoryTableError, match="was marked as lost"):
        build(root, T)
    assert "was marked as lost" in keep_up(root)[0]
    root.delete_history("t")
    build(root, T)
    assert values(table(root.path, root)) == [b"a"]
    storage_paths.retire(root, 3)


def test_a_path_with_a_table_of_a_deleted_topic_is_not_retired(root: Root, lake: Path) -> None:
    build(root, T)
    storage_paths.drain(root, 3)
    left = table(lake, root)
    root.delete_topic("t")
    with pytest.raises(InvalidArgumentError, match="history tables of deleted topics"):
        storage_paths.retire(root, 3)
    delete_later(root, left)
    storage_paths.retire(root, 3)


def test_a_path_for_histories_counts_for_no_quorum(root: Root, lake: Path) -> None:
    assert storage_paths.drain(root, 0).state == "draining"  # quorum 3/3/2: two are left
    with pytest.raises(InvalidArgumentError, match="only 1 other paths"):
        storage_paths.drain(root, 1)
    messages.write(root, "t", [b"b"])
    assert list((lake / "segments").rglob("*.arrow")) == []


def test_a_build_after_a_killed_one_goes_on_with_its_table(
    root: Root, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(building._PartBuild, "_record", die)
        with pytest.raises(Killed):
            build(root, T)
    storage_paths.drain(root, 3)
    build(root, T)
    assert values(table(lake, root)) == [b"a"]
    assert len(list((lake / "history").iterdir())) == 1


def test_a_change_of_the_path_during_a_first_build_makes_no_second_table(root: Root) -> None:
    def moved(pieces: list[building.Piece]) -> list[building.DataFile]:
        with_path(root, "lake")
        return write_here(pieces)

    build(root, T, BuildOptions(write=moved))
    assert values(table(root.path, root)) == [b"a"]


def test_backups_and_restored_roots_have_no_histories(root: Root, lake: Path, tmp_path: Path) -> None:
    build(root, T)
    back_up(root, tmp_path / "backup")
    restore_root(root, tmp_path / "restored", datetime.now(UTC))
    for name in ("backup", "restored"):
        copy = Root.open(tmp_path / name)
        assert copy.store.view().all(HistoryRecord) == []
        messages.write(copy, "t", [name.encode()])
        build(copy, T)
    assert values(table(lake, root)) == [b"a"]


def test_another_root_cannot_have_the_path(root: Root, lake: Path) -> None:
    other = Root.create(root.path.with_name("other"))
    with pytest.raises(StoragePathError, match="not path"):
        storage_paths.add(other, lake, role="history")
