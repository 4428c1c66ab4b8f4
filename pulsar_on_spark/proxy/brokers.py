"""The brokers behind a proxy: a root's registered brokers, or a list. A proxy connects to no other address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from pulsar_on_spark.metadata.records import BrokerRecord, ListenerUrls
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.proxy.handshake import usable_url
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.brokers import registered_brokers

MAX_AGE_S: Final = 1.0
"""Seconds for which registrations of brokers are used before they are read again."""
_TLS: Final = "pulsar+ssl"
_PORTS: Final = {"pulsar": 6650, _TLS: 6651}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker.

    Attributes:
        host: The broker's host.
        port: The broker's port.
        with_tls: True if the port has TLS.
    """

    host: str
    port: int
    with_tls: bool

    @property
    def authority(self) -> str:
        """`host:port`, by which clients name the broker; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Brokers(Protocol):
    """The brokers that a proxy may connect to."""

    async def addresses(self) -> list[BrokerAddress]:
        """Return the addresses of all brokers, one for each host and listener.

        Raises:
            MetadataError: the registrations cannot be read.
        """


class ListedBrokers:
    """A fixed list of brokers, given by their URLs.

    Args:
        urls: URLs such as `pulsar://broker-1:6650`, each of which may list several hosts, separated by commas.

    Raises:
        InvalidArgumentError: a URL is not a broker's URL.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        self._addresses = [address for url in urls for address in _parsed(url)]

    async def addresses(self) -> list[BrokerAddress]:
        """Return the addresses of all brokers in the list."""
        return self._addresses


class RegisteredBrokers:
    """The brokers that are registered in a root.

    Args:
        root: The open root.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._addresses: list[BrokerAddress] = []
        self._read_at_s = -MAX_AGE_S
        self._turn = asyncio.Lock()

    async def addresses(self) -> list[BrokerAddress]:
        """Return the addresses of all registered brokers, read within `MAX_AGE_S` (errors as `Brokers.addresses`)."""
        async with self._turn:
            if time.monotonic() - self._read_at_s >= MAX_AGE_S:
                view = await asyncio.to_thread(self._root.store.view)
                found = dict.fromkeys(address for record in registered_brokers(view) for address in _of(record))
                self._addresses, self._read_at_s = list(found), time.monotonic()
        return self._addresses


def _of(record: BrokerRecord) -> Iterator[BrokerAddress]:
    listeners: list[ListenerUrls] = [record.default_listener, *record.listeners.values()]
    for listener in listeners:
        yield from _parsed(usable_url(listener.service_url, listener.service_url_tls))


def _parsed(url: str) -> Iterator[BrokerAddress]:
    scheme, _, hosts = url.partition("://")
    for host in hosts.rstrip("/").split(","):
        try:
            parts = urlsplit(f"//{host}")
            port = parts.port or _PORTS[scheme]
        except (KeyError, ValueError):
            parts = None
        if parts is None or not parts.hostname:
            raise InvalidArgumentError(
                f"{url!r} is not the URL of a broker: give a URL such as pulsar://broker-1:6650."
            )
        yield BrokerAddress(parts.hostname, port, scheme == _TLS)
