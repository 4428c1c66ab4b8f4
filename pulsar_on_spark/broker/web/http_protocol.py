"""HTTP connections with limits: slow and idle clients make room for new ones, and every wait has a timeout.

| waiting for                                  | at most                     |
|----------------------------------------------|-----------------------------|
| a request's headers, from the accept or from its first byte | `HEADERS_S`  |
| the rest of its body                         | `BODY_S`                    |
| a client to take what was written to it      | `TAKE_S`                    |
| the next request of a connection that is kept| uvicorn's keep-alive time   |

Above a limit of connections the one that has waited for its client longest is closed, so that a new client always gets
in. Where none waits, the new one's request is answered with 503, unless it is a probe (`PROBES`): a broker that is
crowded lives, and must not be killed for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any, Final

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pulsar_on_spark.broker.web.health import PROBES

HEADERS_S: Final = 10.0
"""Time limit of a request's headers."""
BODY_S: Final = 60.0
"""Time limit of a request's body."""
TAKE_S: Final = 60.0
"""Time in which a client must read an answer."""
_CROWDED: Final = JSONResponse(
    {"reason": "Too many HTTP connections are busy: try again, or raise max_http_server_connections."},
    503,
    {"Connection": "close", "Retry-After": "1"},
)


class HttpLimits:
    """All HTTP connections of a broker; closes idle ones when there are too many.

    Args:
        total: Connections of all clients together; 0 for any number.
        per_address: Connections from one address; 0 for any number.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._connections: Counter[str] = Counter()
        self._waiting: dict[LimitedHttp, None] = {}
        self._waiting_of: defaultdict[str, dict[LimitedHttp, None]] = defaultdict(dict)
        """Connections that wait for their clients, the one that has waited longest first."""

    def enter(self, connection: LimitedHttp) -> None:
        """Count a connection, and close one that waits if there are too many."""
        address = connection.address
        self._connections[address] += 1
        if self._is_over(self._connections[address], self._per_address):
            waiting = self._waiting_of[address]
        elif self._is_over(self._connections.total(), self._total):
            waiting = self._waiting
        else:
            return
        for longest in waiting:
            longest.abort()
            return

    def leave(self, connection: LimitedHttp) -> None:
        """Stop counting a connection."""
        address = connection.address
        self.on_busy(connection)
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]
            self._waiting_of.pop(address, None)

    def on_waiting(self, connection: LimitedHttp) -> None:
        """Note that a connection waits for its client from now on."""
        self.on_busy(connection)
        self._waiting[connection] = self._waiting_of[connection.address][connection] = None

    def on_busy(self, connection: LimitedHttp) -> None:
        """Note that a connection no longer waits for its client."""
        self._waiting.pop(connection, None)
        self._waiting_of[connection.address].pop(connection, None)

    def is_crowded(self, connection: LimitedHttp) -> bool:
        """True if there are too many connections, in total or from this one's address."""
        return self._is_over(self._connections[connection.address], self._per_address) or self._is_over(
            self._connections.total(), self._total
        )

    @staticmethod
    def _is_over(count: int, limit: int) -> bool:
        return 0 < limit < count


class LimitedHttp(H11Protocol):
    """One connection.

    Args:
        limits: The limits, shared by all connections.
        config, server_state, app_state, _loop: As uvicorn gives them.

    Attributes:
        address: The client's.
    """

    def __init__(
        self,
        limits: HttpLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self.app = self._answer
        self._limits = limits
        self._is_lost = False
        self._waits_for: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_served = scope["path"] in PROBES or not self._limits.is_crowded(self)
        try:
            await (self.config.loaded_app if is_served else _CROWDED)(scope, receive, send)
        finally:
            # uvicorn closes the connection next where the answer was cut off.
            self.loop.call_soon(self._wait_for_close)

    def abort(self) -> None:
        """Close the connection now; what was not sent is dropped."""
        self._limits.on_busy(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._limits.enter(self)
        self._wait_for("headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self._wait_for(None, None)
        self._is_lost = True
        self.resume_writing()
        self._unset_keepalive_if_required()
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received data, and set the timeout that applies now."""
        super().data_received(data)
        self._look_what_is_due()

    def on_response_complete(self) -> None:
        """Wait for the client to take the answer, or for its next request."""
        super().on_response_complete()
        self._look_what_is_due(is_idle=not self.conn.trailing_data[0])

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._look_what_is_due()

    def pause_writing(self) -> None:
        """Wait for the client to take what was written."""
        super().pause_writing()
        self._untaken = self.loop.call_later(TAKE_S, self.abort)

    def resume_writing(self) -> None:
        """Note that the client has read enough."""
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _look_what_is_due(self, *, is_idle: bool = False) -> None:
        self._wait_for_close()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._wait_for(self.cycle, BODY_S)
        elif self.conn.their_state is h11.IDLE:
            # uvicorn closes an idle one.
            self._wait_for(*("the next request", None) if is_idle else ("headers", HEADERS_S))
        else:
            self._wait_for(None, None)

    def _wait_for_close(self) -> None:
        if self.transport.is_closing():
            self._wait_for("closing", TAKE_S)

    def _wait_for(self, what: object, limit_s: float | None) -> None:
        """Wait for this from the client; None ends the wait. More of the same does not extend it."""
        if what == self._waits_for or self._is_lost:
            return
        self._waits_for = what
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if limit_s is not None:
            self._deadline = self.loop.call_later(limit_s, self.abort)
        if what is None:
            self._limits.on_busy(self)
        else:
            self._limits.on_waiting(self)
