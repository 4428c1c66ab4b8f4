"""A proxy in front of a real S3 server that loses replies, and delays or refuses requests, as networks and stores do.

Signatures stay valid, because the `Host` header is passed on. Each request is recorded with its outcome, so that a test
can count requests or stop a writer between any two of them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote, urlsplit

from typing_extensions import override

Headers = Sequence[tuple[str, str]]

_NO_HEADERS: Final[Headers] = ()
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_HOP_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


class Fault(Enum):
    """A way in which a request goes wrong."""

    LOST_REPLY = "carried out, but the connection breaks before the reply"
    RESET = "not carried out: the connection breaks"
    ERROR_500 = "not carried out: status 500"
    ERROR_500_AFTER = "carried out, but the reply is status 500"
    BUSY_503 = "not carried out: status 503, as from an overloaded store"
    CONFLICT_409 = "not carried out: status 409, as from S3 while another conditional write of the key is in progress"
    PRECONDITION_412 = "carried out, but the reply is status 412, as after the network repeated the request"
    FORBIDDEN_403 = "not carried out: status 403"


_STATUS: Final = {
    Fault.ERROR_500: 500,
    Fault.ERROR_500_AFTER: 500,
    Fault.BUSY_503: 503,
    Fault.CONFLICT_409: 409,
    Fault.PRECONDITION_412: 412,
    Fault.FORBIDDEN_403: 403,
}
_CARRIED_OUT: Final = frozenset({Fault.LOST_REPLY, Fault.ERROR_500_AFTER, Fault.PRECONDITION_412})


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server.

    Attributes:
        number: Number of earlier requests.
        method: HTTP method, such as `PUT`.
        path: The decoded path, which starts with the bucket.
        query: The encoded query.
        is_conditional: True for a write with `If-None-Match` or `If-Match`.
    """

    number: int
    method: str
    path: str
    query: str
    is_conditional: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished request.

    Attributes:
        request: The request.
        status: The server's HTTP status; 0 if the request was not forwarded.
        fault: The fault of the request; None without a fault.
    """

    request: Request
    status: int
    fault: Fault | None


Decide = Callable[[Request], Fault | None]
"""Function that returns the fault of a request, None for no fault. It may wait first; connections' threads call it."""


@dataclass
class S3Faults:
    """Context manager that runs a proxy with faults, in front of an S3 server, on a free port of 127.0.0.1.

    Attributes:
        upstream: The endpoint of the real server, such as `http://127.0.0.1:9000`.
        decide: The function that chooses the fault of each request. Tests may set it at any time.
        outcomes: All finished requests, in the order in which they finished.
    """

    upstream: str
    decide: Decide = lambda _: None
    outcomes: list[Outcome] = field(default_factory=list)

    def __enter__(self) -> S3Faults:
        self._lock = threading.Lock()
        self._started = 0
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The endpoint for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _begin(self, handler: BaseHTTPRequestHandler) -> Request:
        with self._lock:
            number = self._started
            self._started += 1
        parts = urlsplit(handler.path)
        is_conditional = bool(handler.headers["If-None-Match"] or handler.headers["If-Match"])
        return Request(number, handler.command, unquote(parts.path), parts.query, is_conditional)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, faults: S3Faults) -> None:
        self.faults = faults
        super().__init__(("127.0.0.1", 0), _Handler)

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: broken connections are expected, because clients close theirs, too."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """True, because a reply is two writes, and Nagle's algorithm would delay the second one by about 40 ms.

    The second write would wait for the client's delayed TCP ACK.
    """
    server: _Server

    def _serve(self) -> None:
        faults = self.server.faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = faults._begin(self)
        fault = faults.decide(request)
        status, headers, content = 0, _NO_HEADERS, b""
        if fault is None or fault in _CARRIED_OUT:
            status, headers, content = self._forward(body)
        faults.outcomes.append(Outcome(request, status, fault))
        if fault in (Fault.LOST_REPLY, Fault.RESET):
            self._break()
        elif fault is not None:
            self._reply(_STATUS[fault], _NO_HEADERS, b"")
        else:
            self._reply(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the names that http.server calls

    def _forward(self, body: bytes) -> tuple[int, Headers, bytes]:
        """Return the real server's status, headers and content; status 502 if it does not answer."""
        target = urlsplit(self.server.faults.upstream)
        assert target.hostname is not None, "the upstream is a URL with a host"
        connection = HTTPConnection(target.hostname, target.port, timeout=_TIMEOUT_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_HEADERS:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_HEADERS]
            return answer.status, kept, answer.read()
        except (OSError, HTTPException):
            return 502, _NO_HEADERS, b""
        finally:
            connection.close()

    def _reply(self, status: int, headers: Headers, content: bytes) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD" or "content-length" not in names:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _break(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
