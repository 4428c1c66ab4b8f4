"""`pulsarpy offload` and `offload-status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.cli.http_admin import RequestRefusedError
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.running_broker import RunningBroker


@pytest.fixture
def root(memory_path: Path) -> Root:
    made = Root.create(memory_path / "root")
    made.create_topic("t")
    for number in range(4):
        messages.write(made, "t", [b"%d" % number * 100])
    return made


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def cold_files(root: Root) -> int:
    return sum(file.is_cold for file in root.store.view().all(FileRecord))


def test_a_cold_path_is_added_and_a_topic_offloaded(root: Root, memory_path: Path) -> None:
    added = json.loads(run("storage", "add", memory_path / "cold", root.path, "--role", "cold", "--json"))
    assert (added["role"], added["path_id"]) == ("cold", 3)
    assert "cold" in run("storage", "list", root.path)
    assert "moved to cold paths" in run("offload", "t", root.path, "--size-threshold", "100")
    assert cold_files(root) == 3
    report = json.loads(run("topics", "offload", "t", "--root", root.path, "-s", "0", "--json"))
    assert (report["moved"]["moved"], report["waiting"]) == (1, 0)


def test_problems_are_reported(root: Root, memory_path: Path) -> None:
    done = CliRunner().invoke(app, ["offload", "t", str(root.path)])
    assert isinstance(done.exception, InvalidArgumentError)
    run("storage", "add", memory_path / "cold", root.path, "--role", "cold")
    run("storage", "lost", 3, root.path)
    done = CliRunner().invoke(app, ["offload", "t", str(root.path)])
    assert isinstance(done.exception, InvalidArgumentError)
    done = CliRunner().invoke(app, ["offload", "t", str(root.path), "-s", "much"])
    assert "--size-threshold is 'much'" in str(done.exception)
    done = CliRunner().invoke(app, ["offload-status", "t"], env={"PULSARPY_ROOT": str(root.path)})
    assert isinstance(done.exception, InvalidArgumentError)


def test_a_broker_offloads(root: Root, memory_path: Path) -> None:
    with RunningBroker(root.path, {"maintain_interval_s": 3_600}) as broker:
        run("offload", "t", "--url", broker.web_url)
        done = CliRunner().invoke(app, ["offload-status", "t", "--wait", "--url", broker.web_url])
        assert isinstance(done.exception, RequestRefusedError)
        assert "has no cold storage path" in str(done.exception)
        run("storage", "add", memory_path / "cold", root.path, "--role", "cold")
        run("offload", "t", "--url", broker.web_url, "--size-threshold", "100")
        assert "SUCCESS" in run("offload-status", "t", "--wait", "--url", broker.web_url)
        assert cold_files(root) == 3
        done = CliRunner().invoke(app, ["offload", "t", "--url", broker.web_url, "--size-threshold", "1G"])
        assert "no sealed segments before" in str(done.exception)
