"""The brokers that are measured: ours on a fresh root, or a peer that is listening, with their processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

_LAG: Final = "pulsarpy_sealing_lag_bytes"


class Target(Protocol):
    """A broker under measurement."""

    @property
    def name(self) -> str:
        """The name for the table."""

    @property
    def url(self) -> str:
        """The URL for clients; another one after `seal`."""

    @property
    def trust_certs(self) -> str | None:
        """PEM file of the CAs that clients trust; None without TLS."""

    @property
    def start_s(self) -> float | None:
        """Time from the command to the output of its URL, on a new root; None for a running peer."""

    def processes(self) -> list[psutil.Process]:
        """The broker's process and those that it has started."""

    def unsealed_bytes(self) -> int:
        """Return the bytes that still have to be sealed; 0 for a broker without sealing."""

    def seal(self) -> None:
        """Seal all published messages, and empty the broker's caches."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker that is listening on this machine; warm it up before.

    It does not seal: where it reads a backlog from is its own choice.
    """

    url: str
    name: str = "peer"
    start_s: float | None = None
    trust_certs: str | None = None

    def processes(self) -> list[psutil.Process]:
        """Return the processes that listen on the broker's port."""
        port = urlsplit(self.url).port
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid is not None:
                return _with_children(psutil.Process(found.pid))
        raise InvalidArgumentError(f"No process listens on port {port} here: start the peer on this machine.")

    def unsealed_bytes(self) -> int:
        """Return 0: there is no sealing."""
        return 0

    def seal(self) -> None:
        """Do nothing: there is no sealing."""


class Ours:
    """A broker of ours; see `our_broker`."""

    def __init__(self, root: Path, quorum: Quorum, tls: TlsFiles | None) -> None:
        self.name = f"ours {quorum}" if tls is None else f"ours {quorum} TLS"
        self.trust_certs = None if tls is None else tls.trust
        self._settings = {} if tls is None else tls.settings(web_service_port_tls="")
        self._root = Root.create(root, quorum=quorum)
        began_s = time.perf_counter()
        self._broker = RunningBroker(root, self._settings)
        self.start_s: float | None = time.perf_counter() - began_s

    @property
    def url(self) -> str:
        """The URL of the running broker."""
        return self._broker.tls_url or self._broker.url

    def processes(self) -> list[psutil.Process]:
        """Return the broker's processes."""
        return _with_children(psutil.Process(self._broker.pid))

    def unsealed_bytes(self) -> int:
        """Return the bytes of the journal that are not sealed."""
        metrics = httpx.get(f"{self._broker.web_url}/metrics", timeout=60).raise_for_status().text
        found = text_string_to_metric_families(metrics)
        return sum(int(each.value) for family in found if family.name == _LAG for each in family.samples)

    def seal(self) -> None:
        """Stop the broker, seal its journal by housekeeping, and start it again."""
        self.stop()
        self._root.maintain()
        self._broker = RunningBroker(self._root.path, self._settings)

    def stop(self) -> None:
        """Stop the broker."""
        self._broker.stop()


@contextmanager
def our_broker(root: Path, quorum: Quorum, tls: TlsFiles | None = None) -> Iterator[Ours]:
    """A broker of ours on a fresh root, with all storage paths on one disk; clients use TLS if it is given."""
    shutil.rmtree(root, ignore_errors=True)
    ours = Ours(root, quorum, tls)
    try:
        yield ours
    finally:
        ours.stop()
        shutil.rmtree(root, ignore_errors=True)


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]
