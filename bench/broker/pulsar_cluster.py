"""Three brokers of a real Pulsar on this machine, with ZooKeeper and a bookie (`bench/peers/pulsar/cluster`)."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx

from tests.kit.waiting import wait_until

_SCRIPT: Final = Path(__file__).parents[1] / "peers/pulsar/cluster"
_START_S: Final = 900
"""The first start resolves Pulsar's JARs."""


class PulsarBroker:
    """A running broker.

    Attributes:
        url: Its service URL.
        pid: Its process.
    """

    def __init__(self, work: Path, number: int) -> None:
        self.url = f"pulsar://127.0.0.1:1665{number}"
        self._admin = f"http://127.0.0.1:1808{number}"
        self._process = _start(work, str(number))
        self.pid = self._process.pid
        wait_until(self._serves, f"{self.url} serves", limit_s=_START_S)

    def _serves(self) -> bool:
        return self.owner_of("any") is not None

    def owner_of(self, topic: str) -> str | None:
        """Return the URL of the broker of a topic of `public/default`; None if there is no answer."""
        path = f"{self._admin}/lookup/v2/topic/persistent/public/default/{topic}"
        with suppress(httpx.HTTPError):
            return str(httpx.get(path, timeout=20, follow_redirects=True).raise_for_status().json()["brokerUrl"])
        return None

    def kill(self) -> None:
        """End the broker by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Wait until the broker has ended, and return its exit code."""
        return self._process.wait()


class PulsarCluster:
    """The brokers; all data before is deleted.

    Args:
        work: A folder for JARs, data and logs.

    Attributes:
        url: The addresses of all brokers, for clients.
        brokers: The brokers that run now.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._storage = _start(work, "storage")
        self.brokers: list[PulsarBroker] = []
        try:
            wait_until(self._is_set_up, "Pulsar's storage is set up", limit_s=_START_S)
            self.brokers += [PulsarBroker(work, number) for number in range(3)]
        except BaseException:
            self.stop()
            raise
        self.url = "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in self.brokers)

    def __enter__(self) -> PulsarCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def url_of(self, topic: str) -> str:
        """Return the URL of the broker that serves a topic of `public/default`."""
        owners = (broker.owner_of(topic) for broker in self.brokers)
        return next((owner for owner in owners if owner is not None), self.brokers[0].url)

    def replace(self, url: str) -> None:
        """Wait for the end of the broker of a URL, which the caller has ended, and start it again."""
        number = [broker.url for broker in self.brokers].index(url)
        self.brokers[number].wait()
        self.brokers[number] = PulsarBroker(self._work, number)

    def stop(self) -> None:
        """End all processes."""
        for broker in self.brokers:
            broker.kill()
        self._storage.terminate()
        self._storage.wait()

    def _is_set_up(self) -> bool:
        return "setup correctly" in (self._work / "storage.log").read_text()


def _start(work: Path, part: str) -> subprocess.Popen[bytes]:
    work.mkdir(parents=True, exist_ok=True)
    with (work / f"{part}.log").open("wb") as log:
        return subprocess.Popen([_SCRIPT, work, part], stdout=log, stderr=log)
