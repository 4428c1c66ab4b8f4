"""Backup and restore as operators do it: the page's commands, one after the other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark import cli
from pulsar_on_spark.cli.restore import parse_moment
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def commands(heading: str) -> list[str]:
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    on_one_line = section.replace("\\\n", "")
    found = re.findall(r"^\$ (.*?)(?:\s+#.*)?$", on_one_line, re.MULTILINE)
    assert found
    return found


@pytest.fixture
def do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Run a command in the folder of `my-root`; it must succeed without a complaint."""
    monkeypatch.delenv("PULSARPY_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(command: str) -> str:
        words = shlex.split(command.replace(" /disk", f" {tmp_path}/disk"))
        if words[0] != "pulsarpy":
            subprocess.run(words, check=True)
            return ""
        monkeypatch.setattr(sys, "argv", words)
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        assert (code or 0, captured.err) == (0, ""), command
        return captured.out

    return call


def test_backup_and_restore(do: Callable[[str], str], tmp_path: Path) -> None:
    root = Root.create(tmp_path / "my-root", [tmp_path / f"disk{number}" for number in range(3)])
    root.create_topic("t")
    messages.write(root, "t", [b"1", b"2"])
    *to_do, last = commands("Backup and restore")
    assert last == "pulsarpy standalone my-root"
    restoring = next(number for number, command in enumerate(to_do) if command.startswith("mv "))
    said = [do(command) for command in to_do[:restoring]]
    assert "3 copies verified as good" in said[0]
    messages.write(root, "t", [b"later"])
    for command in to_do[restoring:]:
        do(command)
    assert messages.values(Root.open(tmp_path / "my-root"), "t") == [b"1", b"2"]


def test_back_to_an_earlier_moment(do: Callable[[str], str], tmp_path: Path) -> None:
    root = Root.create(tmp_path / "my-root")
    root.create_topic("orders")
    messages.write(root, "orders", [b"1", b"2"])
    then = datetime.now(UTC)
    version = root.store.view().version
    time.sleep(0.002)  # the log's times have milliseconds
    messages.write(root, "orders", [b"a mistake"])
    dry, restoring, *_ = commands("Back to an earlier moment")
    assert "--dry-run" in dry
    for command in (dry, restoring):
        said = do(command.replace("2026-01-31T12:00:00+01:00", then.isoformat()))
        assert f"(version {version}) to {tmp_path}/restored: 1 topics, 2 messages, 1 files" in said
    assert messages.values(Root.open(tmp_path / "restored"), "orders") == [b"1", b"2"]
    assert json.loads(do(f"pulsarpy restore again my-root --to {version} --json"))["missing"] == []
    assert messages.values(Root.open(tmp_path / "again"), "orders") == [b"1", b"2"]


def test_a_restore_with_losses_says_so_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = Root.create(tmp_path / "my-root")
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    for copy in root.path.glob("storage/*/segments/*/*.arrow"):
        copy.unlink()
    version = str(root.store.view().version)
    monkeypatch.setattr(
        sys, "argv", ["pulsarpy", "restore", str(tmp_path / "restored"), str(root.path), "--to", version, "--dry-run"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 1
    assert "persistent://public/default/t" in said.out
    assert "readers report them as lost" in said.err


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31T12:00:00", "9" * 5_000, "99999999y", "-1"])
def test_a_moment_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="a time with a zone such as"):
        parse_moment(text, datetime.now(UTC))


def test_a_full_disk(do: Callable[[str], str], tmp_path: Path) -> None:
    root = Root.create(tmp_path / "my-root", [tmp_path / f"disk{number}" for number in range(3)])
    root.create_topic("t")
    for command in commands("A disk is full"):
        do(command)


def test_a_broker_dies(do: Callable[[str], str], tmp_path: Path) -> None:
    """Recover by hand, without another broker: entries with a receipt are in segments, with all copies."""
    with RunningBroker(tmp_path / "my-root") as broker:
        client = pulsar.Client(broker.url)
        producer = client.create_producer("t")
        for number in range(10):
            producer.send(b"%d" % number)
        client.close()
        broker.kill()
    said = [do(command) for command in commands("A broker dies")]
    assert "recovered" in said[0]
    assert "Copies: 0 missing, 0 bad." in said[2]
    root = Root.open(tmp_path / "my-root")
    assert messages.values(root, "t") == [b"%d" % number for number in range(10)]
    assert [(each.state, each.journal_bytes) for each in root.status().incarnations] == [("CLOSED", 0)]


def test_an_upgrade(do: Callable[[str], str], tmp_path: Path) -> None:
    """Run the first two steps and the way back; tests of the formats show that old files can be read."""
    (before,) = re.findall(r"`(pulsarpy backup .*?)`", PAGE.split("\n## An upgrade\n", 1)[1])
    with RunningBroker(tmp_path / "my-root") as broker:
        with closing(pulsar.Client(broker.url)) as client:
            client.create_producer("t").send(b"1")
            do(before)
        assert broker.stop() == 0
    for name in ("my-root", "before-upgrade"):
        found = {topic.name: topic.messages for topic in Root.open(tmp_path / name).status().topics}
        assert found == {"persistent://public/default/t": 1}
