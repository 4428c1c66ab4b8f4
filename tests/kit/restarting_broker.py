"""A broker that is killed and started again at the same URL, so that clients find it again by themselves."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.kit.running_broker import RunningBroker

PORTS = range(20_000, 30_000)
"""Ports below the kernel's range for outgoing connections, which could take a port between two brokers."""


class RestartingBroker:
    """`pulsarpy standalone` on one port for good.

    Attributes:
        url: What clients connect to.
    """

    def __init__(self, root: Path, settings: Mapping[str, object] | None = None) -> None:
        self._root = root
        self._settings = {**(settings or {}), "broker_service_port": _free_port()}
        self._running = RunningBroker(root, self._settings)
        self.url = self._running.url

    def __enter__(self) -> RestartingBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def said(self) -> str:
        """Return what the present broker has printed and logged."""
        return self._running.said

    def url_of(self, topic: str) -> str:
        """Return the URL of the broker that serves a topic: the only one."""
        return self.url

    def kill(self) -> None:
        """SIGKILL, and the next one is up."""
        self._running.kill()
        self._running = RunningBroker(self._root, self._settings)

    def stop(self) -> int:
        """SIGTERM; returns its exit code."""
        return self._running.stop()


def _free_port() -> int:
    while True:
        with socket.socket() as tried:
            try:
                tried.bind(("0.0.0.0", port := random.choice(PORTS)))
            except OSError:
                continue
            return port
