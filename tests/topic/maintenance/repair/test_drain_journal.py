"""A path is drained under an open journal: its broker leaves it, and the path can be retired while it writes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until


def running_on(root: Root, path_id: int) -> bool:
    """True if the last fragment, or the one ahead, has a file on a path."""
    (record,) = root.store.view().all(IncarnationRecord)
    last = [fragment for fragment in record.fragments if fragment.first is not None][-1:]
    ahead = [fragment for fragment in record.fragments if fragment.first is None]
    return any(path == path_id for fragment in (*last, *ahead) for path, _ in fragment.copies)


def test_a_journal_leaves_a_path_that_is_drained(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(4)])
    root.create_topic("t")
    with RunningIncarnation(root) as broker:
        broker.send("t", [b"before"])
        drained = next(path for path in range(4) if running_on(root, path))
        storage_paths.drain(root, drained)
        sent = 0

        def left() -> bool:
            nonlocal sent
            broker.send("t", [b"%d" % sent])
            sent += 1
            return not running_on(root, drained)

        wait_until(left)
        with pytest.raises(InvalidArgumentError, match="journal"):
            storage_paths.retire(root, drained)
        sealer = Sealer(root, broker.incarnation.id, is_live=True)
        trimmer = Trimmer(root, broker.incarnation.id, sealer.cursors, grace_s=0)

        def trimmed() -> bool:
            sealer.seal(tail=True)
            trimmer.trim()
            return storage_paths.use_of(root.store.view(), PathId(drained)).fragments == 0

        wait_until(trimmed)
        sealer.close()
        assert repair(root).is_whole
        held = tmp_path / f"disk{drained}" / "pulsarpy-path.json"
        with held.open(), pytest.raises(InvalidArgumentError, match=f"process {os.getpid()} has 1 files open"):
            storage_paths.retire(root, drained)
        storage_paths.retire(root, drained)
        broker.send("t", [b"after"])
        broker.stop()
    seal_closed(root, pytest.fail, grace_s=0)
    assert repair(root).is_whole
