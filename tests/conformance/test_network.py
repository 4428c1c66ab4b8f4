"""A network namespace for root, for when the machine's network is not as the suites expect it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import socket

import conformance.network as network

with socket.create_server(("127.0.0.1", 0)) as taken:
    network.BROKER_PORT = network.WEB_PORT = taken.getsockname()[1]
    try:
        network.claim_network()
    except network.PortsTakenError as error:
        print(error)
    else:
        with socket.create_server(("127.0.0.1", network.BROKER_PORT)):
            print("free")
"""


NOBODY = """
import socket

import conformance.network as network

for name in ("BROKER_PORT", "WEB_PORT"):
    with socket.create_server(("127.0.0.1", 0)) as free:
        setattr(network, name, free.getsockname()[1])
network.claim_network()
try:
    socket.create_connection(("192.0.2.1", 1234), timeout=1)
except OSError as error:
    print(type(error).__name__)
"""


def said(program: str = PROGRAM) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_root_gets_a_network_where_the_ports_are_free() -> None:
    assert said() == "free"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_missing_hosts_do_not_answer() -> None:
    assert said(NOBODY) == "TimeoutError"


def test_without_a_namespace_the_ports_must_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert said().endswith("run as root with iproute2 installed, for a separate network namespace.")
