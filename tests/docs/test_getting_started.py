"""README.md and docs/getting-started.md as a newcomer follows them: commands and clients' programs, against a broker.

Their blocks for Spark run in test_examples.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_on_spark import cli
from pulsar_on_spark.root import Root
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

HOUSE = Path(__file__).parents[2]
PAGE = (HOUSE / "docs" / "getting-started.md").read_text()
SPARK, PULSAR = PAGE.split("\n## With Pulsar's clients\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("newcomer")
    root = Root.create(found / "my-root")
    root.create_topic("orders")
    messages.write(root, "orders", [b"first", b"last"])
    return found


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[RunningBroker]:
    with RunningBroker(folder / "my-root") as running:
        yield running


def do(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    code: object = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert (code or 0, said.err) == (0, ""), command
    return said.out


def commands(part: str) -> list[str]:
    return re.findall(r"^\$ (pulsarpy .*)$", part, re.MULTILINE)


def at(broker: RunningBroker, text: str) -> str:
    return text.replace("pulsar://localhost:6650", broker.url).replace("http://localhost:8080", broker.web_url)


def run_program(part: str, broker: RunningBroker) -> None:
    (program,) = re.findall(r"^```py\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    exec(compile(at(broker, program), "page", "exec"), {})


def test_the_readmes_client(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    run_program((HOUSE / "README.md").read_text(), broker)
    assert capsys.readouterr().out == "b'hello'\n"


def test_the_shell_beside_spark(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PULSARPY_URL", raising=False)
    said = [do(command, capsys, monkeypatch) for command in commands(SPARK)]
    assert len(said) == 4
    assert "persistent://public/default/orders" in said[0]
    assert "last" in said[1]


def test_clients_and_the_command_line(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSARPY_URL", broker.web_url)
    monkeypatch.delenv("PULSARPY_ROOT", raising=False)

    run_program(PULSAR, broker)
    assert capsys.readouterr().out == "b'payment 0' account-0\n"
    said = {command.split()[1]: do(at(broker, command), capsys, monkeypatch) for command in commands(PULSAR)}
    assert list(said) == ["produce", "topics", "consume", "seek", "policies", "status"]
    assert "5 messages" in said["topics"]
    assert said["consume"].count("payment") == 2
