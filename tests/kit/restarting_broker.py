"""A broker that is killed and started again at the same URL, so that clients find it again by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker


class RestartingBroker:
    """`pulsarpy standalone` on one port for good.

    Attributes:
        url: What clients connect to.
    """

    def __init__(self, root: Path, settings: Mapping[str, object] | None = None) -> None:
        self._root = root
        self._settings = {**(settings or {}), "broker_service_port": free_port()}
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
