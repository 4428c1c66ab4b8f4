"""docs/secure-a-broker.md as an operator follows it: its commands, its clients' programs, on free ports."""

from __future__ import annotations

import re
import shlex
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.docs.test_getting_started import do
from tests.kit.running_broker import RunningBroker

PAGE = (Path(__file__).parents[2] / "docs" / "secure-a-broker.md").read_text()
COMMANDS = re.findall(r"^ *\$ (.*)$", PAGE, re.MULTILINE)
PROGRAMS = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def at(broker: RunningBroker, text: str) -> str:
    return text.replace("pulsar+ssl://localhost:6651", broker.url).replace("https://localhost:8443", broker.web_url)


def run_program(broker: RunningBroker, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", at(broker, program)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("PULSARPY_URL", "PULSARPY_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    init, start, export, grant, create, curl, revoke = COMMANDS
    do(init, capsys, monkeypatch)
    _, command, *options = shlex.split(start.removesuffix("&"))
    assert (command, options) == ("standalone", ["--root", "my-root", "--config", "secure/broker.toml"])
    settings = tmp_path / "secure" / "broker.toml"
    ports = {"broker_service_port": "", "web_service_port": ""}
    free = {"broker_service_port_tls": 0, "web_service_port_tls": 0}
    with RunningBroker(tmp_path / "my-root", ports | free, options=["--config", str(settings)]) as broker:
        conf = tmp_path / "secure" / "client.conf"
        conf.write_text(at(broker, conf.read_text()))
        name, _, value = export.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)
        do(grant, capsys, monkeypatch)
        token, _, file = create.partition(" > ")
        Path(file).write_text(do(token, capsys, monkeypatch))
        (exchange,) = PROGRAMS
        assert "b'hello'" in run_program(broker, exchange, tmp_path).stdout.splitlines()
        _, _, trust, url = shlex.split(at(broker, curl))
        answer = httpx.get(url, verify=ssl.create_default_context(cafile=trust))
        assert answer.text in PAGE
        do(revoke, capsys, monkeypatch)
        refused = run_program(broker, exchange, tmp_path)
        assert "AuthorizationError" in refused.stderr
