"""A running proxy: its ports, and its connected clients."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_on_spark.broker.runtime.ports import listen
from pulsar_on_spark.broker.runtime.tls import BrokerTls
from pulsar_on_spark.broker.runtime.tls_listener import TlsListener
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.proxy.brokers import Brokers
from pulsar_on_spark.proxy.connection import GREETING_TIMEOUT_S, ClientEnd
from pulsar_on_spark.security.tls import ServerTls, client_context

log = logging.getLogger(__name__)

MAX_CLIENTS: Final = 10_000
"""Maximum number of connected clients, as Pulsar's `maxConcurrentInboundConnections`; more are disconnected."""
CHECK_TLS_S: Final = 300.0
"""Seconds between two checks whether the TLS files were replaced."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The settings of a proxy.

    Attributes:
        bind_address: The address to listen on.
        port: The port without TLS; 0 for any free port, None for no port without TLS.
        port_tls: The port with TLS; 0 for any free port, None for no port with TLS.
        tls: The certificate and key of the port with TLS; None without such a port.
        broker_trust_certs: PEM file of the CAs that sign the certificates of brokers; None for the system's CAs.
    """

    bind_address: str
    port: int | None
    port_tls: int | None
    tls: ServerTls | None
    broker_trust_certs: Path | None


class Proxy:
    """A proxy for the clients of brokers.

    Args:
        brokers: The brokers to which the proxy connects clients.
        settings: The settings of the proxy.

    Attributes:
        urls: The URLs to which clients connect; empty before `start`.

    Raises:
        InvalidArgumentError: a TLS file cannot be used.
    """

    def __init__(self, brokers: Brokers, settings: ProxySettings) -> None:
        self._brokers = brokers
        self._settings = settings
        self._clients: set[ClientEnd] = set()
        self._tls = None if settings.tls is None else BrokerTls(settings.tls, CHECK_TLS_S)
        self._server: asyncio.Server | None = None
        self._listener: TlsListener | None = None
        self._broker_tls = client_context(settings.broker_trust_certs, allow_insecure=False, verify_hostname=True)
        self.urls: list[str] = []

    async def start(self) -> None:
        """Begin to accept clients, and set `urls`.

        Raises:
            InvalidArgumentError: a port cannot be bound, or the port with TLS has no certificate.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        if settings.port is not None:
            listening = listen(settings.bind_address, settings.port, "--service-port")
            self.urls.append(_url("pulsar", listening))
            self._server = await loop.create_server(self._client, sock=listening)
        if settings.port_tls is not None:
            if self._tls is None:
                raise InvalidArgumentError("A port with TLS needs --tls-certificate and --tls-key: give PEM files.")
            listening = listen(settings.bind_address, settings.port_tls, "--service-port-tls")
            self.urls.append(_url("pulsar+ssl", listening))
            self._tls.start()
            self._listener = TlsListener(self._tls, "this port has TLS", GREETING_TIMEOUT_S)
            self._listener.start(listening, self._client)

    async def stop(self) -> None:
        """Stop accepting clients, and disconnect all clients, which may then connect to another proxy."""
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            await self._listener.stop()
        for client in list(self._clients):
            client.close()
        if self._tls is not None:
            await self._tls.stop()

    def _client(self) -> asyncio.Protocol:
        if len(self._clients) >= MAX_CLIENTS:
            log.warning(
                "A client is disconnected: the proxy has %d clients, its limit; start another one.", MAX_CLIENTS
            )
            return _Refused()
        client = ClientEnd(self._brokers, self._broker_tls, self._clients.discard)
        self._clients.add(client)
        return client


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def run_until_signal(proxy: Proxy) -> None:
    """Wait for SIGTERM or SIGINT, and then stop the proxy, which the caller has started."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    await proxy.stop()


def tls_of(certificate: Path | None, key: Path | None) -> ServerTls | None:
    """Return the TLS settings of a proxy with these files; None if neither file is given.

    Raises:
        InvalidArgumentError: only one of the two files is given.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidArgumentError("TLS needs both --tls-certificate and --tls-key: give both, or neither.")
    return ServerTls(certificate, key)


def _url(scheme: str, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
