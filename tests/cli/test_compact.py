"""`pulsarpy compact`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pulsar_on_spark.cli.app import app
from pulsar_on_spark.model.errors import TopicNotFoundError
from pulsar_on_spark.testing import messages
from pulsar_on_spark.topic.root import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t")
    messages.write(made, "t", [b"1", b"2", b"3", b"4"], [b"a", b"a", b"b", None])
    return made


def test_compact_says_what_it_did(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "t", str(root.path)])
    assert done.exit_code == 0
    assert "persistent://public/default/t" in done.output
    (report,) = json.loads(CliRunner().invoke(app, ["compact", "t", str(root.path), "--json"]).output)
    assert report["outcome"] == "unchanged"
    assert sorted(m.value or b"" for m in messages.read_compacted(root, "t")) == [b"2", b"3"]


def test_compact_keeps_messages_without_a_key_if_told(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "t", "--root", str(root.path), "--retain-null-key", "--json"])
    (report,) = json.loads(done.output)
    assert (report["outcome"], report["read_messages"], report["messages"]) == ("compacted", 4, 3)


def test_compact_of_a_topic_that_is_not_there(root: Root) -> None:
    done = CliRunner().invoke(app, ["compact", "other", str(root.path)])
    assert isinstance(done.exception, TopicNotFoundError)
