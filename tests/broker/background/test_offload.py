"""The process of a requested offload."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pulsar_on_spark.broker.background import offload
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.kit import messages


def test_it_ends_in_time_and_says_what_is_left(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root.create(memory_path / "root")
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [b"%d" % number])
    storage_paths.add(root, memory_path / "cold", role="cold")
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["offload", str(root.path), "t", f"{2**62}:0", "{}"])
    monkeypatch.setattr(offload, "MAX_SECONDS", -1.0)
    for moved in (1, 2):
        with pytest.raises(SystemExit, match="before all segments were offloaded: repeat it"):
            offload.main()
        assert sum(file.is_cold for file in root.store.view().all(FileRecord)) == moved
    offload.main()
    assert all(file.is_cold for file in root.store.view().all(FileRecord))
