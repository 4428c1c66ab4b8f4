"""A build whose process is killed before any of its changes to the disk: the next build gives each message once."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from tests.kit import messages

pytestmark = pytest.mark.long

T = TopicName.parse("t")
BUILD = """
import os, signal, sys
from pulsar_on_spark.history_table.build import build
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root

root, left = Root.open(sys.argv[1]), int(sys.argv[2])

def counted(name):
    real = getattr(os, name)

    def call(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    return call

for name in ("mkdir", "link", "rename", "fsync", "unlink", "pwrite"):
    setattr(os, name, counted(name))
build(root, TopicName.parse("t"))
"""


def test_a_build_is_killed_before_each_of_its_changes(memory_path: Path) -> None:
    root = Root.create(memory_path / "root")
    root.create_topic("t")
    written: list[bytes] = []
    for step in count():
        written.append(b"%d" % step)
        messages.write(root, "t", written[-1:])
        code = subprocess.run([sys.executable, "-c", BUILD, str(root.path), str(step)], check=False).returncode
        if code == 0:
            break
        assert code == -9
        build(root, T)
        assert stored(root) == written
    assert step > 10
    assert stored(root) == written


def stored(root: Root) -> list[bytes]:
    (record,) = root.store.view().all(HistoryTableRecord)
    rows = DeltaTable(root.path / record.table).to_pyarrow_table()
    values: list[bytes] = rows.sort_by([("__ledgerId", "ascending"), ("__entryId", "ascending")])["value"].to_pylist()
    return values
