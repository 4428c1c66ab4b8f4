"""If the suites' ports are taken, root gets a network of its own and any other user an error."""

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
        network.claim_ports()
    except network.PortsTakenError as error:
        print(error)
    else:
        with socket.create_server(("127.0.0.1", network.BROKER_PORT)):
            print("free")
"""


def said() -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_root_gets_a_network_where_the_ports_are_free() -> None:
    assert said() == "free"


def test_without_one_the_ports_must_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert said().endswith("run as root with iproute2 installed, which gives the run a network of its own.")
