"""All client connections of a broker: the listening sockets, keep-alive, and back-pressure on producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pulsar_on_spark.broker.connection.broker_state import BrokerState
from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Handlers
from pulsar_on_spark.broker.connection.registry import Registry
from pulsar_on_spark.broker.runtime.ports import Ports
from pulsar_on_spark.broker.runtime.tls import BrokerTls
from pulsar_on_spark.broker.runtime.tls_listener import TlsListener
from pulsar_on_spark.protocol import replies

_TICKS_PER_INTERVAL: Final = 4
"""Number of liveness checks of each connection in a keep-alive interval."""
_BACKLOG: Final = 1024
"""Maximum number of connections that the kernel queues until they are accepted."""


class Connections:
    """The connections of a broker's clients.

    Args:
        frames_limit_bytes: Limit of the bytes of incomplete frames that all connections hold.
    """

    def __init__(self, frames_limit_bytes: int) -> None:
        self._all = Registry[Connection](frames_limit_bytes)
        self._server: asyncio.Server | None = None
        self._tls_listener: TlsListener | None = None
        self._ticking: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def created(self) -> int:
        """Number of connections since the broker's start, including those that were refused."""
        return self._all.created

    async def serve(
        self, ports: Ports, tls: BrokerTls | None, state: BrokerState, handlers: Handlers[Connection]
    ) -> None:
        """Accept clients on the ports for Pulsar's protocol.

        Args:
            ports: The bound ports; those for HTTP are not used.
            tls: The TLS context of the broker; None if no port has TLS.
            state: The state of the broker that connections depend on.
            handlers: The handlers of commands.
        """

        def new_connection() -> Connection:
            return Connection(state, handlers, self._all)

        loop = asyncio.get_running_loop()
        settings = state.current_settings()
        if ports.binary is not None:
            self._server = await loop.create_server(new_connection, sock=ports.binary, backlog=_BACKLOG)
        if ports.binary_tls is not None and tls is not None:
            timeout_s = settings.connection_handshake_timeout_seconds
            self._tls_listener = TlsListener(tls, ports.numbers.use_binary, timeout_s)
            self._tls_listener.start(ports.binary_tls, new_connection)
        self._ticking.append(asyncio.create_task(self._tick(settings.keep_alive_interval_seconds)))
        if settings.authentication_enabled:
            check_s = settings.authentication_refresh_check_seconds
            self._ticking.append(asyncio.create_task(self._renew(check_s, handlers.renew)))

    def update_holds(self) -> None:
        """Pause or resume reading from producers after the publish path has closed or reopened."""
        for connection in self._all:
            connection.update_hold()

    async def stop_listening(self) -> None:
        """Stop accepting clients, and stop the checks of connected clients, which stay connected."""
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        if self._tls_listener is not None:
            await self._tls_listener.stop()

    def close(self) -> None:
        """Close all connections after the written data is sent."""
        for connection in self._all:
            connection.close()

    async def _renew(self, interval_s: float, renew: Callable[[Connection], None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for connection in self._all:
                renew(connection)

    async def _tick(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s / _TICKS_PER_INTERVAL)
            now_s = loop.time()
            for connection in self._all:
                if connection.intake.is_held:
                    connection.keep_alive_while_held()
                    continue
                silent_s = now_s - connection.intake.heard_s
                if silent_s >= 2 * interval_s:
                    connection.abort("no data arrived from it in two keep-alive intervals")
                elif silent_s >= interval_s and not connection.is_pinged:
                    connection.is_pinged = True
                    connection.write(replies.ping())
