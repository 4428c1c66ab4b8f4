"""The measured brokers: ours on a new root, or a running peer, with their processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.files import replace_file
from pulsar_on_spark.security.issuing import new_secret, sign
from pulsar_on_spark.security.keys import secret_key
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

_LAG: Final = "pulsarpy_sealing_lag_bytes"
_ADMIN: Final = "admin"
_ROLE: Final = "bench"


class Target(Protocol):
    """A broker under measurement."""

    @property
    def name(self) -> str:
        """The broker's name in the table."""

    @property
    def url(self) -> str:
        """The service URL for clients, which `seal` may change."""

    @property
    def admin_url(self) -> str | None:
        """URL of Pulsar's admin API; None if the broker has none."""

    @property
    def trust_certs(self) -> str | None:
        """PEM file of the CAs that clients trust; None without TLS."""

    @property
    def token(self) -> str | None:
        """The token of the clients' role; None without authentication."""

    @property
    def start_s(self) -> float | None:
        """Seconds from the command to the output of its URL, on a new root; None for a peer, which runs already."""

    def processes(self) -> list[psutil.Process]:
        """Return the broker's process, and the processes that it has started."""

    def unsealed_bytes(self) -> int:
        """Return the number of bytes that are not sealed yet; 0 for a broker without sealing."""

    def seal(self) -> None:
        """Seal all published messages, and empty the broker's caches."""

    @property
    def journals(self) -> Sequence[Path]:
        """Folders on the disks of the journal's copies; empty if they are not known."""

    @property
    def acks(self) -> int:
        """Number of copies that are synced before a receipt; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker that is running on this machine, and should be warm.

    It does not seal, and reads a backlog in its usual way.

    Attributes:
        url: The service URL.
        name: The name in the table.
        start_s: None, because the peer is running already.
        journals: Empty, because they are not known.
        acks: 0, because it is not known.
        trust_certs: None, because clients connect without TLS.
        token: None, because clients connect without authentication.
    """

    url: str
    admin_url: str | None = None
    name: str = "peer"
    start_s: float | None = None
    trust_certs: str | None = None
    token: str | None = None
    journals: Sequence[Path] = ()
    acks: int = 0

    def processes(self) -> list[psutil.Process]:
        """Return the process that listens on the broker's port, and the processes that it has started."""
        port = urlsplit(self.url).port
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid is not None:
                return with_children(psutil.Process(found.pid))
        raise SystemExit(f"No process listens on port {port} of this machine: start the peer at {self.url} here.")

    def unsealed_bytes(self) -> int:
        """Return 0, because the peer has no sealing."""
        return 0

    def seal(self) -> None:
        """Do nothing, because the peer has no sealing."""


class Protection(StrEnum):
    """The layer between our broker and its clients: none, TLS, tokens with granted permissions, or a proxy."""

    NONE = "none"
    TLS = "TLS"
    ROLES = "roles"
    PROXY = "proxy"


class Ours:
    """A broker of this project, which `our_broker` starts."""

    def __init__(self, work: Path, quorum: Quorum, protection: Protection) -> None:
        self.name = f"ours {quorum}" if protection is Protection.NONE else f"ours {quorum} {protection}"
        self.trust_certs: str | None = None
        self.token: str | None = None
        self._settings: Mapping[str, object] = {}
        if protection is Protection.TLS:
            files = TlsFiles(work / "tls")
            self.trust_certs = files.trust
            self._settings = files.settings(web_service_port_tls="")
        elif protection is Protection.ROLES:
            roles = _Roles(work)
            self.token = roles.token(_ROLE)
            self._settings = roles.settings
        self._root = Root.create(work / "root", quorum=quorum)
        self.journals: Sequence[Path] = [work] * quorum.write
        self.acks: int = quorum.ack
        began_s = time.perf_counter()
        self._broker = RunningBroker(self._root.path, self._settings)
        self.start_s: float | None = time.perf_counter() - began_s
        self._proxy: RunningBroker | None = None
        if protection is Protection.PROXY:
            self._proxy = RunningBroker(self._root.path, command="proxy", options=["--service-port", "0"])
        if protection is Protection.ROLES:
            roles.grant(self._broker.web_url)

    @property
    def url(self) -> str:
        """The URL of the running broker."""
        return self._proxy.url if self._proxy is not None else self._broker.tls_url or self._broker.url

    @property
    def admin_url(self) -> str | None:
        """The URL of the running broker's admin API."""
        return self._broker.web_url

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the broker and, if it has one, of its proxy."""
        running = [self._broker, *filter(None, [self._proxy])]
        return [process for each in running for process in with_children(psutil.Process(each.pid))]

    def unsealed_bytes(self) -> int:
        """Return the number of bytes of the journal that are not sealed yet."""
        metrics = httpx.get(f"{self._broker.web_url}/metrics", timeout=60).raise_for_status().text
        found = text_string_to_metric_families(metrics)
        return sum(int(each.value) for family in found if family.name == _LAG for each in family.samples)

    def seal(self) -> None:
        """Stop the broker, seal its journal by housekeeping, and start it again."""
        self.stop()
        self._root.maintain()
        self._broker = RunningBroker(self._root.path, self._settings)

    def stop(self) -> None:
        """Stop the broker and its proxy."""
        if self._proxy is not None:
            self._proxy.stop()
        self._broker.stop()


@contextmanager
def our_broker(work: Path, quorum: Quorum, protection: Protection = Protection.NONE) -> Iterator[Ours]:
    """Yield a broker of ours on a new root in the folder `work`, with all storage paths on one disk."""
    with TemporaryDirectory(dir=work) as folder:
        ours = Ours(Path(folder), quorum, protection)
        try:
            yield ours
        finally:
            ours.stop()


class _Roles:
    """The keys and settings of a broker that requires tokens and permissions."""

    def __init__(self, work: Path) -> None:
        secret = work / "secret.key"
        key = new_secret("HS256")
        replace_file(secret, key, secret=True)
        self._key = secret_key(key, "the bench's key")
        self.settings: Mapping[str, object] = {
            "authentication_enabled": True,
            "authentication_providers": "token",
            "token_secret_key": secret,
            "authorization_enabled": True,
            "super_user_roles": _ADMIN,
        }

    def token(self, role: str) -> str:
        """Return a token of a role that does not expire."""
        return sign(self._key, {"sub": role})

    def grant(self, web_url: str) -> None:
        """Let the clients' role produce and consume in the default namespace."""
        httpx.post(
            f"{web_url}/admin/v2/namespaces/public/default/permissions/{_ROLE}",
            json=["produce", "consume"],
            headers={"Authorization": f"Bearer {self.token(_ADMIN)}"},
            timeout=60,
        ).raise_for_status()


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Return a process, and the processes that it has started."""
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)
