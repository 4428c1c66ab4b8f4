"""Brokers of a root on an S3 server, each with a proxy of its own, which can cut it off from the store."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final

import httpx

from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.testing.s3_faults import Fault, Request, S3Faults
from tests.kit.broker_cluster import TAKEOVERS, BrokerCluster
from tests.kit.s3_server import write_profile
from tests.kit.waiting import wait_until

OUTAGE_S: Final = 30.0
_SETTING: Final = FILE_VARIABLE.removeprefix("PULSARPY_").lower()


@dataclass
class _Link:
    """The connection of a broker to the store: while it is cut, requests have no answer."""

    proxy: S3Faults
    is_whole: Event

    def decide(self, request: Request) -> Fault | None:
        if self.is_whole.is_set():
            return None
        self.is_whole.wait()
        return Fault.RESET


class StoreCluster(BrokerCluster):
    """Brokers of a root on an S3 server.

    Args:
        url: The root.
        endpoint: The server.
        options: The options of a client of the server.
        folder: A folder for profiles.
        settings: The settings of all brokers.
    """

    def __init__(
        self, url: str, endpoint: str, options: Mapping[str, str], folder: Path, settings: Mapping[str, object]
    ) -> None:
        self._folder = folder
        self._links: list[_Link] = []
        with ExitStack() as undo:
            for number in range(3):
                link = _Link(S3Faults(endpoint), Event())
                link.is_whole.set()
                link.proxy.decide = link.decide
                undo.enter_context(link.proxy)
                self._links.append(link)
                write_profile(self._profile(number), url, {**options, "aws_endpoint": link.proxy.url})
            super().__init__(url, settings)
            self._undo = undo.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links:
            link.is_whole.set()
        super().__exit__(kind, error, trace)
        self._undo.close()

    def _profile(self, number: int) -> Path:
        return self._folder / f"profile-{number}.toml"

    def _settings_of(self, number: int) -> Mapping[str, object]:
        return {**super()._settings_of(number), _SETTING: self._profile(number)}

    def cut(self) -> None:
        """Cut one broker off from the store until others have taken it over; it must end, and starts again."""
        number = random.randrange(len(self._brokers))
        cut_off, link = self._brokers[number], self._links[number]
        others = [broker for broker in self._brokers if broker is not cut_off]
        before = sum(broker.metric(TAKEOVERS) for broker in others)
        link.is_whole.clear()
        try:
            wait_until(
                lambda: sum(broker.metric(TAKEOVERS) for broker in others) > before,
                lambda: f"{cut_off.url} is taken over: {self.said}",
            )
        finally:
            link.is_whole.set()
        assert cut_off.wait() == 1, cut_off.said
        self._brokers[number] = self._start(number)

    def outage(self) -> None:
        """Let the store give no answer for a while: no broker may be taken over, and each must serve again."""
        before = [broker.metric(TAKEOVERS) for broker in self._brokers]
        for link in self._links:
            link.is_whole.clear()
        time.sleep(OUTAGE_S)
        for link in self._links:
            link.is_whole.set()
        for broker in self._brokers:
            url = broker.web_url
            wait_until(partial(_is_healthy, url), partial(_health, url))
        assert [broker.metric(TAKEOVERS) for broker in self._brokers] == before, self.said


def _is_healthy(web_url: str) -> bool:
    return not _health(web_url)


def _health(web_url: str) -> str:
    """Return what is wrong with a broker, "" for nothing."""
    try:
        answer = httpx.get(f"{web_url}/admin/v2/brokers/health", timeout=20)
    except httpx.HTTPError as error:
        return repr(error)
    return "" if answer.is_success else answer.text
