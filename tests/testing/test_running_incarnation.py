"""An incarnation that a test kills leaves nothing under way in the test's process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.root import Root
from tests.kit.running_incarnation import RunningIncarnation


@pytest.mark.parametrize("end", [RunningIncarnation.kill, RunningIncarnation.stop])
def test_no_task_outlives_the_incarnation(tmp_path: Path, end) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("t")
    running = RunningIncarnation(root)
    running.send("t", [b"acknowledged"])
    end(running)
    assert asyncio.all_tasks(running._loop) == set()
    assert running._loop.is_closed()
    (record,) = root.store.view().all(IncarnationRecord)
    assert record.state == ("OPEN" if end is RunningIncarnation.kill else "CLOSED")
