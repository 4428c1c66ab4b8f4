"""The log lines of a broker's processes, as on standard error: JSON lines name their subject in fields."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_on_spark.model.logs import JsonLines, TextLines
from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker

from .test_app import Run, run  # noqa: F401  (a fixture)

PATIENCE_S = 60
Line = dict[str, Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = {"log_format": "json", "log_level": "INFO", "maintain_interval_s": 0.5}
    with RunningBroker(tmp_path_factory.mktemp("logs") / "root", settings) as running:
        yield running


def logged(broker: RunningBroker) -> list[Line]:
    return [json.loads(line) for line in broker.said.splitlines() if line.startswith("{")]


def logged_when(broker: RunningBroker, holds: Callable[[Line], bool]) -> Line:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        found = [line for line in logged(broker) if holds(line)]
        if found:
            return found[0]
        assert time.monotonic() < end_s, broker.said
        time.sleep(0.05)


def test_log_lines_name_their_objects(broker: RunningBroker) -> None:
    client = pulsar.Client(broker.url)
    client.create_producer("gone").send(b"a")
    Root.open(broker.root).delete_topic("gone", force=True)
    line = logged_when(broker, lambda each: "was deleted" in each["message"])
    assert line["topic"] == "persistent://public/default/gone"
    assert (line["level"], line["logger"]) == ("WARNING", "pulsar_on_spark.broker.topics.topic_watch")
    assert line["time"].endswith("Z")
    client.close()

    host, port = broker.url.removeprefix("pulsar://").split(":")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(b"\xff" * 64)
        address = rude.getsockname()
        line = logged_when(broker, lambda each: each["message"].startswith("Closing the connection"))
    assert str(address[1]) in line["connection"]


def test_child_processes_log_in_the_same_format(broker: RunningBroker) -> None:
    shutil.rmtree(broker.root / "storage" / "1")
    line = logged_when(broker, lambda each: each["logger"].startswith("pulsar_on_spark.topic.maintenance"))
    assert line["path"] == 1


def test_only_the_greeting_is_not_json(broker: RunningBroker) -> None:
    others = [line for line in broker.said.splitlines() if line.startswith(("20", "INFO", "WARNING", "ERROR"))]
    assert others == []


def test_an_exception_stays_in_its_line() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "It %s", ("broke",), (ValueError, error, None))
    record.ledger, record.topic = 7, Path("t")
    text = JsonLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["ledger"], line["topic"]) == ("It broke", 7, "t")
    assert line["exception"].endswith("ValueError: no\nway")


@pytest.mark.parametrize("setting", ["--log-level=LOUD", "--log-format=xml"])
def test_a_setting_that_is_not_known(run: Run, setting: str, tmp_path: Path) -> None:  # noqa: F811
    done = run("standalone", tmp_path / "root", setting)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pulsarpy: Setting 'log_")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("format_", [TextLines("%(message)s"), JsonLines()])
def test_log_lines_have_no_control_characters(format_: logging.Formatter) -> None:
    evil = "x\x1b[2J\u202e\u2028\ny"
    try:
        raise ValueError(evil)
    except ValueError as error:
        raised = (type(error), error, error.__traceback__)
    line = format_.format(logging.LogRecord("l", logging.INFO, "f", 1, "topic %s é", (evil,), raised))
    assert line.replace("\n", "").isprintable()
    assert "é" in line
    if isinstance(format_, JsonLines):
        assert json.loads(line)["message"] == f"topic {evil} é"
    else:
        assert line.splitlines()[0] == r"topic x\x1b[2J\u202e\u2028\ny é"
