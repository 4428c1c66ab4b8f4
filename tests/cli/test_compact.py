"""`pulsarpy compact`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.model.errors import TopicNotFoundError
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.forked_pulsarpy import run_pulsarpy
from tests.kit.running_incarnation import RunningIncarnation


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    messages.write(made, "t", [b"1", b"2", b"3", b"4"], [b"a", b"a", b"b", None])
    return made


def test_compact_prints_its_result(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "t", str(root.path)])
    assert done.exit_code == 0
    assert "persistent://public/default/t" in done.output
    (report,) = json.loads(CliRunner().invoke(app, ["compact", "t", str(root.path), "--json"]).output)
    assert report["outcome"] == "unchanged"
    assert sorted(m.value or b"" for m in messages.read_compacted(root, "t")) == [b"2", b"3"]


def test_compact_keeps_messages_without_a_key_on_request(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "t", "--root", str(root.path), "--retain-null-key", "--json"])
    (report,) = json.loads(done.output)
    assert (report["outcome"], report["read_messages"], report["messages"]) == ("compacted", 4, 3)


def test_compact_of_a_missing_topic(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "other", str(root.path)])
    assert isinstance(done.exception, TopicNotFoundError)


def test_compact_reports_the_wait_for_a_dead_broker(root: Root) -> None:
    lease_s = 0.5
    with RunningIncarnation(root, lease_duration_s=lease_s) as broker:
        broker.send("t", [b"5"])
        broker.kill()
    time.sleep(lease_s)  # the lease is older than that, and no process has watched it
    done = run_pulsarpy("compact", "t", root.path)
    assert done.returncode == 0
    told = done.stderr.splitlines()
    assert [line.startswith("pulsarpy: ") for line in told] == [True] * len(told)
    assert "Waiting" in told[0]
    assert broker.incarnation.id in told[0]
    assert any("is recovered" in line for line in told)
