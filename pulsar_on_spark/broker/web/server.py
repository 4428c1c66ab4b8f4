"""The HTTP server, which runs the application on the broker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, cast

import uvicorn

from pulsar_on_spark.broker.runtime.ports import Ports
from pulsar_on_spark.broker.runtime.tls_listener import TlsListener
from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.web.app import create_app
from pulsar_on_spark.broker.web.http_protocol import HEADERS_S, HttpLimits, LimitedHttp

KEEP_ALIVE_S: Final = 30
"""Time that an idle connection stays open, in seconds."""
DRAIN_TIMEOUT_S: Final = 5
"""Time to finish running requests when the server stops, in seconds."""
_STARTED_POLL_S: Final = 0.01


class WebServer:
    """The broker's HTTP server.

    Args:
        services: The broker's parts.
        broker_health: The broker's health, for metrics and probes.
    """

    def __init__(self, services: Services, broker_health: BrokerHealth) -> None:
        self._services = services
        self._broker_health = broker_health
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tls_listener: TlsListener | None = None

    async def start(self, ports: Ports) -> None:
        """Serve on the ports for HTTP."""
        settings = self._services.settings
        limits = HttpLimits(settings.max_http_server_connections, settings.max_http_server_connections_per_ip)
        config = uvicorn.Config(
            create_app(self._services, self._broker_health),
            lifespan="off",
            log_config=None,
            log_level="error",  # "warning" logs a line per malformed request, without its client
            access_log=False,
            proxy_headers=False,  # by default, uvicorn believes what any client of this host says of its address
            http=cast(Any, partial(LimitedHttp, limits, ports.numbers.use_web_tls)),
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
        )
        self._server = _Server(config)
        plain = [] if ports.web is None else [ports.web]
        self._serving = asyncio.create_task(self._server.serve(plain), name="web server")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("The web server ended before it had started.")
            await asyncio.sleep(_STARTED_POLL_S)
        if ports.web_tls is not None and (tls := self._services.tls) is not None:
            self._tls_listener = TlsListener(tls, ports.numbers.use_web, HEADERS_S)
            self._tls_listener.start(ports.web_tls, self._server.new_protocol)

    async def stop(self) -> None:
        """Finish running requests and stop serving."""
        if self._tls_listener is not None:
            await self._tls_listener.stop()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    def new_protocol(self) -> asyncio.Protocol:
        """Create the protocol of a connection that uvicorn has not accepted; stopping uvicorn closes it, too."""
        made = cast(Any, self.config.http_protocol_class)
        return cast(
            asyncio.Protocol,
            made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the broker instead of uvicorn."""
        yield
