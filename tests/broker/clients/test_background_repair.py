"""A broker's housekeeping restores what a lost storage path held on a spare one, without an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import scrub
from pulsar_on_spark.topic.maintenance.repair.audit import live
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

from .test_durable import stored
from .test_lost_path import Load, wipe

WIPED = 1
SETTINGS = {"maintain_interval_s": 0.5, "lost_path_recovery_delay_s": 0.5}


@pytest.mark.long
def test_a_wiped_path_is_replaced_under_load(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root", [tmp_path / str(number) for number in range(4)])
    root.create_topic("by-spark")

    def write(value: bytes) -> None:
        messages.write(root, "by-spark", [value])

    with RunningBroker(root.path, SETTINGS) as broker:
        load = Load(broker.url, write)
        try:
            wait_until(lambda: has_copies(root, WIPED))
            wipe(tmp_path / str(WIPED))
            load.wait_for_more(5)
            wait_until(lambda: not has_copies(root, WIPED))
            load.wait_for_more(5)
        finally:
            load.stop()
        (record,) = [each for each in root.store.view().all(PathRecord) if each.path_id == WIPED]
        assert record.state == "read-only"
    view = root.store.view()
    paths = root.storage_paths(view)
    for file in live(view):
        assert len(set(file.copies) - {WIPED}) == 3
        assert all(scrub.defect(file, paths[PathId(each)]) is None for each in file.copies)
    assert stored(root.path, "by-clients") == load.sent
    assert messages.values(root, "by-spark") == load.written


def has_copies(root: Root, path_id: int) -> bool:
    """True if a file in use has a copy on this storage path."""
    return any(path_id in file.copies for file in live(root.store.view()))
