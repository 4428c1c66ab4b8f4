"""HTTP connections with limits: slow and idle clients give way to new ones, and every wait has a timeout.

| wait                                                        | timeout                     |
|-------------------------------------------------------------|-----------------------------|
| for a request's headers, from the accept or its first byte  | `HEADERS_S`                 |
| for the rest of its body                                    | `BODY_S`                    |
| for a client to read the written data                       | `TAKE_S`                    |
| for the next request of an idle connection                  | uvicorn's keep-alive time   |

Above the connection limit, the connection that has waited longest for its client is closed, so that a new client
always gets in. If no connection waits, the new request is answered with 503, unless it is a probe (`PROBES`): an
overloaded broker is alive, and its supervisor must not kill it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from typing import Any, Final

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pulsar_on_spark.broker.runtime.tls_listener import TLS_HANDSHAKE
from pulsar_on_spark.broker.web.health import PROBES
from pulsar_on_spark.broker.web.requests import CERTIFICATE
from pulsar_on_spark.security.limits import source_of

log = logging.getLogger(__name__)

HEADERS_S: Final = 10.0
"""Time limit of a request's headers, in seconds."""
BODY_S: Final = 60.0
"""Time limit of a request's body, in seconds."""
TAKE_S: Final = 60.0
"""Time in which a client must read its response, in seconds."""
_CROWDED: Final = JSONResponse(
    {"reason": "Too many HTTP connections are busy: try again, or raise max_http_server_connections."},
    503,
    {"Connection": "close", "Retry-After": "1"},
)


class HttpLimits:
    """The limits on connections of a broker's HTTP server; above them, connections that wait for clients are closed.

    Args:
        total: Maximum number of connections; 0 for no limit.
        per_source: Maximum number of connections from one source; 0 for no limit.
    """

    def __init__(self, total: int, per_source: int) -> None:
        self._total = total
        self._per_source = per_source
        self._connections: Counter[str] = Counter()
        self._waiting: dict[LimitedHttp, None] = {}
        self._waiting_of: defaultdict[str, dict[LimitedHttp, None]] = defaultdict(dict)
        """Connections that wait for their clients, in the order in which they began to wait."""

    def enter(self, connection: LimitedHttp) -> None:
        """Count a new connection; if there are too many, close the one that has waited longest for its client."""
        source = connection.source
        self._connections[source] += 1
        if self._is_over(self._connections[source], self._per_source):
            waiting = self._waiting_of[source]
        elif self._is_over(self._connections.total(), self._total):
            waiting = self._waiting
        else:
            return
        for longest in waiting:
            longest.abort()
            return

    def leave(self, connection: LimitedHttp) -> None:
        """Stop counting a connection."""
        source = connection.source
        self.on_busy(connection)
        self._connections[source] -= 1
        if not self._connections[source]:
            del self._connections[source]
            self._waiting_of.pop(source, None)

    def on_waiting(self, connection: LimitedHttp) -> None:
        """Record that a connection began to wait for its client, so that it may be closed above a limit."""
        self.on_busy(connection)
        self._waiting[connection] = self._waiting_of[connection.source][connection] = None

    def on_busy(self, connection: LimitedHttp) -> None:
        """Record that a connection no longer waits for its client, so that it is not closed above a limit."""
        self._waiting.pop(connection, None)
        self._waiting_of[connection.source].pop(connection, None)

    def is_crowded(self, connection: LimitedHttp) -> bool:
        """Return True if a limit is exceeded, in total or for this connection's source."""
        return self._is_over(self._connections[connection.source], self._per_source) or self._is_over(
            self._connections.total(), self._total
        )

    @staticmethod
    def _is_over(count: int, limit: int) -> bool:
        return 0 < limit < count


class LimitedHttp(H11Protocol):
    """One HTTP connection with timeouts.

    Args:
        limits: The limits, shared by all connections.
        remedy: The remedy for clients with TLS at the port without TLS, such as "the port with TLS is 8443".
        config, server_state, app_state, _loop: Arguments of uvicorn's protocol class.

    Attributes:
        source: The source of the client's address (`source_of`).
    """

    def __init__(
        self,
        limits: HttpLimits,
        remedy: str,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.source = ""
        self.app = self._answer
        self._limits = limits
        self._remedy = remedy
        self._is_lost = False
        self._waits_for: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CERTIFICATE] = self.transport.get_extra_info("peercert") or None
        is_served = scope["path"] in PROBES or not self._limits.is_crowded(self)
        try:
            await (self.config.loaded_app if is_served else _CROWDED)(scope, receive, send)
        finally:
            # uvicorn closes the connection next if the response was cut off.
            self.loop.call_soon(self._wait_for_close)

    def abort(self) -> None:
        """Close the connection now, dropping unsent data."""
        self._limits.on_busy(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        self.source = source_of(self.client[0]) if self.client else ""
        self._limits.enter(self)
        self._wait_for("headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, which has ended."""
        self._wait_for(None, None)
        self._is_lost = True
        self.resume_writing()
        self._unset_keepalive_if_required()
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received data, and set the timeout that applies now."""
        if data.startswith(TLS_HANDSHAKE) and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            log.warning(
                "Closing the connection of %s: it began a TLS handshake on the port of HTTP, and %s",
                ":".join(map(str, self.client or ())),
                self._remedy,
            )
            self.abort()
            return
        super().data_received(data)
        self._update_wait()

    def on_response_complete(self) -> None:
        """Wait for the client to read the response, or for its next request."""
        super().on_response_complete()
        self._update_wait(is_idle=not self.conn.trailing_data[0])

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._update_wait()

    def pause_writing(self) -> None:
        """Start the timeout for the client to read the written data; meanwhile the connection waits for its client."""
        super().pause_writing()
        self._untaken = self.loop.call_later(TAKE_S, self.abort)
        self._limits.on_waiting(self)

    def resume_writing(self) -> None:
        """Cancel the timeout: the client has read enough."""
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None
            if self._waits_for is None:
                self._limits.on_busy(self)

    def _update_wait(self, *, is_idle: bool = False) -> None:
        self._wait_for_close()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._wait_for(self.cycle, BODY_S)
        elif self.conn.their_state is h11.IDLE:
            # uvicorn closes idle connections.
            self._wait_for(*("the next request", None) if is_idle else ("headers", HEADERS_S))
        else:
            self._wait_for(None, None)

    def _wait_for_close(self) -> None:
        if self.transport.is_closing():
            self._wait_for("closing", TAKE_S)

    def _wait_for(self, what: object, limit_s: float | None) -> None:
        """Begin a wait for the client; repeating the same wait does not extend it.

        Args:
            what: The subject of the wait, by which a repeated wait is recognised; None to end the wait.
            limit_s: Seconds after which the connection is closed; None for no limit.
        """
        if what == self._waits_for or self._is_lost:
            return
        self._waits_for = what
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if limit_s is not None:
            self._deadline = self.loop.call_later(limit_s, self.abort)
        if what is not None:
            self._limits.on_waiting(self)
        elif self._untaken is None:
            self._limits.on_busy(self)
