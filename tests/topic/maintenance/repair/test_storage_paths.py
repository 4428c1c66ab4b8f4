"""Adding storage paths with a past, and paths that only some processes can reach."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.health import PathRole
from pulsar_on_spark.topic.maintenance.files.collect import collect
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.maintenance.status import storage_status
from tests.kit import messages


def test_a_restored_backup_does_not_take_the_cold_path_of_the_root_that_it_replaces(memory_path: Path) -> None:
    """Both have the same identity, and collection by the one would delete the only copies of the other."""
    place, cold = memory_path / "root", memory_path / "cold"
    root = Root.create(place)
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    shutil.copytree(place, memory_path / "backup")
    storage_paths.add(root, cold, "archive", role="cold")
    messages.write(root, "t", [b"2"])
    for lag in (timedelta(), timedelta(hours=5)):
        offload(root, OffloadRequest(TopicName.parse("t")), now=lambda lag=lag: datetime.now(UTC) + lag)
    place.rename(memory_path / "broken")
    (memory_path / "backup").rename(place)
    with pytest.raises(InvalidArgumentError, match="may be the only copies of another copy of this root"):
        storage_paths.add(Root.open(place), cold, "archive", role="cold")
    assert messages.values(Root.open(memory_path / "broken"), "t") == [b"1", b"2"]


def test_a_path_whose_profile_is_missing_is_out_of_reach_and_all_others_are_kept_up(memory_path: Path) -> None:
    """As for a process on another host, or of another user, than the one that added the path."""
    root = Root.create(memory_path / "root")
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    record = PathRecord(path_id=3, uri="s3://archive/root", profile="archive", role="cold", label="archive")

    def decide(view: View) -> Change:
        puts, moves = features.using(view, features.COLD_PATHS)
        return Change(puts=[record, *puts], keys={keys.path(3): None, **moves})

    root.store.commit(decide)
    (file,) = root.store.view().all(FileRecord)
    paths, lacking = root.current_storage_paths(), PathId(file.copies[0])
    assert paths[lacking].delete_segment(file.names[lacking]) == 1
    repair(root)
    (repaired,) = root.store.view().all(FileRecord)
    assert all(paths[PathId(path_id)].has_segment(name) for path_id, name in repaired.names.items())
    collect(root)
    (cold,) = (path for path in storage_status(root).paths if path.path_id == 3)
    assert not cold.is_there
    assert "Profile 'archive' of s3://archive/root is unknown" in cold.reason
    assert messages.values(root, "t") == [b"1"]


@pytest.mark.parametrize("role", ["both", "cold"])
@pytest.mark.parametrize("ends", [storage_paths.retire, storage_paths.resume])
def test_an_interrupted_retirement_is_named_with_its_remedies(
    memory_path: Path, role: PathRole, ends: Callable[[Root, int], PathRecord]
) -> None:
    root = Root.create(memory_path / "root")
    for name in ("new", "other"):
        storage_paths.add(root, memory_path / name, role=role)
    storage_paths.drain(root, 3)
    assert root.current_storage_paths()[PathId(3)].hide_identity()
    remedies = r"`pulsarpy storage retire 3`.* `pulsarpy storage resume 3`"
    (reason,) = repair(root).away
    assert re.search(remedies, reason)
    (shown,) = (path.reason for path in storage_status(root).paths if path.path_id == 3)
    assert re.search(remedies, shown)
    assert ends(root, 3).state == ("retired" if ends is storage_paths.retire else "writable")
    assert repair(root).away == ()
    if ends is storage_paths.resume:
        storage_paths.resume(root, 3)


def test_a_retirement_during_which_the_path_is_resumed_fails(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root.create(memory_path / "root")
    storage_paths.add(root, memory_path / "new")
    storage_paths.drain(root, 3)
    monkeypatch.setattr(storage_paths, "_require_no_writes", lambda root, path: storage_paths.resume(root, 3))
    with pytest.raises(InvalidArgumentError, match="is writable and cannot be retired"):
        storage_paths.retire(root, 3)
    root.current_storage_paths()[PathId(3)].check()
    assert repair(root).is_whole
