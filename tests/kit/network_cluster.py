"""Brokers in network namespaces of their own, on one bridge, so that they can be cut off from clients and each other.

Needs root and iproute2. The root is on a local disk, which the brokers reach all the time: none may be taken over.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest
from typing_extensions import override

from tests.kit.broker_cluster import TAKEOVERS, BrokerCluster
from tests.kit.waiting import wait_until

UNPLUGGED_S: Final = 70.0
"""Longer than two intervals of keep-alive, after which clients and brokers give a silent connection up."""
PARTED_S: Final = 10.0
_BROKERS: Final = 3


def require_namespaces() -> None:
    """Skip the test where network namespaces cannot be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root, and ip of iproute2, for network namespaces")
    name = f"pulsarpy-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be made here: {tried.stderr.strip()}")
    _ip(f"netns delete {name}")


class NetworkCluster(BrokerCluster):
    """Brokers in namespaces, reached by the addresses of a network of their own.

    Args:
        root: The root, in a folder.
        settings: The settings of all brokers.
    """

    def __init__(self, root: Path, settings: Mapping[str, object]) -> None:
        own = os.getpid()
        self._bridge = f"pb{own}"
        self._cables = [f"pc{own}n{number}" for number in range(_BROKERS)]
        self._spaces = [f"pulsarpy-{own}-{number}" for number in range(_BROKERS)]
        self._addresses = [f"198.18.{own % 250}.{number + 2}" for number in range(_BROKERS)]  # RFC 2544: for tests
        with ExitStack() as undo:
            _ip(f"link add {self._bridge} type bridge")
            undo.callback(_ip, f"link delete {self._bridge}")
            _ip(f"addr add 198.18.{own % 250}.1/24 dev {self._bridge}")
            _ip(f"link set {self._bridge} up")
            for space, cable, address in zip(self._spaces, self._cables, self._addresses, strict=True):
                _ip(f"netns add {space}")
                undo.callback(_ip, f"netns delete {space}")
                _ip(f"link add {cable} type veth peer name eth0 netns {space}")
                _ip(f"link set {cable} master {self._bridge} up")
                _ip(f"-n {space} addr add {address}/24 dev eth0")
                _ip(f"-n {space} link set eth0 up")
                _ip(f"-n {space} link set lo up")
            super().__init__(root, settings, _BROKERS)
            self._undo = undo.pop_all()
        hosts = (f"{address}:{port}" for address, (port, _) in zip(self._addresses, self._ports, strict=True))
        self.url = "pulsar://" + ",".join(hosts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._undo:
            super().__exit__(kind, error, trace)

    def unplug(self) -> None:
        """Cut one broker off from the clients and the other brokers until its connections are given up."""
        number, before = random.randrange(_BROKERS), self._takeovers()
        _ip(f"link set {self._cables[number]} down")
        assert not self._is_reachable(number)
        time.sleep(UNPLUGGED_S)
        _ip(f"link set {self._cables[number]} up")
        wait_until(lambda: self._is_reachable(number), f"broker {number} is reachable again")
        assert self._takeovers() == before, self.said

    def part(self) -> None:
        """Cut one broker off from the other brokers, while clients reach all."""
        alone, before = random.randrange(_BROKERS), self._takeovers()
        routes = [f"blackhole {address}" for address in self._addresses if address != self._addresses[alone]]
        for route in routes:
            _ip(f"-n {self._spaces[alone]} route add {route}")
        time.sleep(PARTED_S)
        for route in routes:
            _ip(f"-n {self._spaces[alone]} route delete {route}")
        assert self._takeovers() == before, self.said

    def _is_reachable(self, number: int) -> bool:
        try:
            socket.create_connection((self._addresses[number], self._ports[number][0]), 1).close()
        except OSError:
            return False
        return True

    def _takeovers(self) -> float:
        return sum(broker.metric(TAKEOVERS) for broker in self._brokers)

    @override
    def _prefix_of(self, number: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._spaces[number])

    @override
    def _settings_of(self, number: int) -> Mapping[str, object]:
        address = self._addresses[number]
        return {**super()._settings_of(number), "bind_address": "0.0.0.0", "advertised_address": address}


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
