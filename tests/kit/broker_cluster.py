"""Several brokers of one root, each on ports of its own for good, of which one at a time is disturbed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx

from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

TAKEOVERS: Final = "pulsarpy_takeovers_total"
"""The metric of a broker that counts the journals that it has taken over."""


class BrokerCluster:
    """Brokers on free ports of this host.

    Args:
        root: The root.
        settings: The settings of all brokers.
        count: The number of brokers.
        versions: Programs that run the brokers (`RunningBroker`'s prefix), for `upgrade`: the first one at first.

    Attributes:
        url: What clients connect to: the addresses of all brokers.
    """

    def __init__(
        self,
        root: Path | str,
        settings: Mapping[str, object] | None = None,
        count: int = 3,
        versions: Sequence[tuple[str, ...]] = ((),),
    ) -> None:
        self._root = root
        self._versions = [versions[0]] * count
        self._other_version = dict(zip(versions, [*versions[1:], versions[0]], strict=True))
        self._upgraded = 0
        self._settings = dict(settings or {})
        self._ports = [(free_port(), free_port()) for _ in range(count)]
        self._brokers: list[RunningBroker] = []
        self._started: list[RunningBroker] = []
        with ExitStack() as undo:
            for number in range(count):
                self._brokers.append(undo.enter_context(self._start(number)))
            undo.pop_all()
        self.url = "pulsar://" + ",".join(f"localhost:{port}" for port, _ in self._ports)

    def __enter__(self) -> BrokerCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def brokers(self) -> list[RunningBroker]:
        """The brokers that run now."""
        return list(self._brokers)

    @property
    def said(self) -> str:
        """Return what the brokers have printed and logged, those that have ended, too."""
        return "\n".join(f"{broker.url}, process {broker.pid}:\n{broker.said}" for broker in self._started)

    def url_of(self, topic: str) -> str:
        """Return the URL of the broker that serves a topic of `public/default`, asked of any broker that answers."""
        for broker in random.sample(self._brokers, len(self._brokers)):
            try:
                answer = httpx.get(f"{broker.web_url}/lookup/v2/topic/persistent/public/default/{topic}", timeout=20)
                return str(answer.raise_for_status().json()["brokerUrl"])
            except httpx.HTTPError:
                continue
        return self._brokers[0].url

    def kill(self) -> None:
        """SIGKILL one broker, and start it again."""
        number = random.randrange(len(self._brokers))
        self._brokers[number].kill()
        self._brokers[number] = self._start(number)

    def kill_all(self) -> None:
        """SIGKILL all brokers, and start them again."""
        for broker in self._brokers:
            broker.kill()
        for number in range(len(self._brokers)):
            self._brokers[number] = self._start(number)

    def pause(self) -> None:
        """Stop one broker by SIGSTOP until others serve its topics; it must end when it wakes, and starts again."""
        number = random.randrange(len(self._brokers))
        paused = self._brokers[number]
        owner = paused.web_url.removeprefix("http://")
        others = [broker for broker in self._brokers if broker is not paused]
        os.kill(paused.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: owner not in _brokers_of(others[0]), lambda: f"{owner} is taken over: {self.said}")
        finally:
            os.kill(paused.pid, signal.SIGCONT)
        assert paused.wait() == 1, paused.said
        self._brokers[number] = self._start(number)

    def restart(self) -> None:
        """Stop one broker by SIGTERM, and start it again."""
        number = random.randrange(len(self._brokers))
        assert self._brokers[number].stop() == 0
        self._brokers[number] = self._start(number)

    def upgrade(self) -> None:
        """Stop the next broker by SIGTERM, and start another version of it: all of them in turn."""
        number = self._upgraded % len(self._brokers)
        self._upgraded += 1
        assert self._brokers[number].stop() == 0
        self._versions[number] = self._other_version[self._versions[number]]
        self._brokers[number] = self._start(number)

    def move(self) -> None:
        """Give the bundles of `public/default` to other brokers."""
        for broker in self._brokers:
            with httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=60) as admin:
                assert admin.put("/namespaces/public/default/unload?authoritative=true").is_success

    def transfer(self) -> None:
        """Give one bundle of `public/default` to a broker that does not own it."""
        with httpx.Client(base_url=f"{self._brokers[0].web_url}/admin/v2", timeout=60, follow_redirects=True) as admin:
            ranges = pairwise(admin.get("/namespaces/public/default/bundles").json()["boundaries"])
            bundle = "_".join(random.choice(list(ranges)))
            destination = random.choice(_brokers_of(self._brokers[0]))
            path = f"/namespaces/public/default/{bundle}/unload"
            answer = admin.put(path, params={"destinationBroker": destination})
            assert answer.is_success, answer.text

    def replace(self, url: str) -> None:
        """Wait for the end of the broker of a URL, which the caller has ended, and start it again."""
        number = [broker.url for broker in self._brokers].index(url)
        self._brokers[number].wait()
        self._brokers[number] = self._start(number)

    def stop(self) -> int:
        """SIGTERM to all, one after the other; returns 0 if all have ended well."""
        return max(broker.stop() for broker in self._brokers)

    def _start(self, number: int) -> RunningBroker:
        binary, web = self._ports[number]
        settings = {**self._settings_of(number), "broker_service_port": binary, "web_service_port": web}
        command = "standalone" if isinstance(self._root, Path) else "broker"
        self._started.append(RunningBroker(self._root, settings, command=command, prefix=self._prefix_of(number)))
        return self._started[-1]

    def _prefix_of(self, number: int) -> tuple[str, ...]:
        """Return the program that runs a broker (`RunningBroker`'s prefix)."""
        return self._versions[number]

    def _settings_of(self, number: int) -> Mapping[str, object]:
        """Return the settings of a broker."""
        return self._settings


def _brokers_of(broker: RunningBroker) -> list[str]:
    return list(httpx.get(f"{broker.web_url}/admin/v2/brokers", timeout=20).json())
