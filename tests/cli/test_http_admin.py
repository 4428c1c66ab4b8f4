"""Requests to a broker's admin API, and its answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from threading import Thread
from urllib.request import Request

import pytest

from pulsar_on_spark.cli.connection import ClientOptions
from pulsar_on_spark.cli.credentials import Credentials
from pulsar_on_spark.cli.http_admin import HttpAdmin, RequestRefusedError
from pulsar_on_spark.cli.http_redirects import RedirectsToOwners

TLS = ClientOptions(credentials=Credentials("token", {"token": "secret"}))


class Recorded(BaseHTTPRequestHandler):
    """Keeps what it is asked, and redirects to the server's `owner`, if it has one."""

    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
        self.send_response(307 if self.server.owner else 200)
        if self.server.owner:
            self.send_header("Location", self.server.owner + self.path)
        self.send_header("X-Key", "Grüße".encode().decode("latin-1"))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  (the base class's names)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to standard error."""


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Recorded)
        self.asked: list[tuple[str, str, bytes, str | None]] = []
        self.owner: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", None), ("POST", {"a": 1}), ("DELETE", None)])
def test_a_redirect_repeats_the_whole_request_with_its_credentials(method: str, body: object) -> None:
    with serving() as first, serving() as owner:
        first.owner = owner.url
        HttpAdmin(first.url, TLS).request(method, ("a b", "c/d"), {"force": True}, body)
        content = b"" if body is None else json.dumps(body).encode()
        path = "/admin/v2/a%20b/c%2Fd?force=true"
        assert first.asked == [(method, path, content, "Bearer secret")]
        assert owner.asked == [(method, path, content, "Bearer secret")]


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("http://a:1", "http://b:2", True),
        ("http://a:1", "https://b:2", True),
        ("https://a:1", "https://b:2", True),
        ("https://a:1", "http://b:2", False),
    ],
)
def test_a_redirect_never_takes_credentials_out_of_tls(before: str, after: str, kept: bool) -> None:
    request = Request(before, headers={"Authorization": "Bearer secret"})
    again = RedirectsToOwners().redirect_request(request, BytesIO(), 307, "", Message(), after)
    assert again is not None
    assert again.has_header("Authorization") == kept


@pytest.mark.parametrize("owner", ["ftp://127.0.0.1:1", "file:///etc"])
def test_a_redirect_to_anything_but_http_is_refused(owner: str) -> None:
    with serving() as first:
        first.owner = owner
        with pytest.raises(RequestRefusedError, match="307"):
            HttpAdmin(first.url, TLS).get("topics")


def test_redirects_in_a_circle_end() -> None:
    with serving() as first:
        first.owner = first.url
        with pytest.raises(RequestRefusedError):
            HttpAdmin(first.url, TLS).get("topics")
        assert len(first.asked) < 20
        assert {authorization for *_, authorization in first.asked} == {"Bearer secret"}


def test_headers_are_found_in_any_case_and_may_hold_any_text() -> None:
    with serving() as first:
        assert HttpAdmin(first.url, TLS).request("GET", (), {}).headers["x-key"] == "Grüße"


@pytest.mark.parametrize(
    "url", ["http://", "http://local host", "http://localhost:none", "http://[::1", "http://ü" * 99]
)
def test_an_invalid_url_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(RequestRefusedError, match="does not answer"):
        HttpAdmin(url, TLS).get("topics")


def test_trusted_cas_are_read_once_for_all_requests_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the public CAs takes longer than a request."""
    reads: list[str] = []
    read = ssl.SSLContext.load_default_certs
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, *_: reads.append("read") or read(self))
    admin = HttpAdmin("https://localhost:1", ClientOptions())
    for _ in range(3):
        with pytest.raises(RequestRefusedError, match="does not answer"):
            admin.get("topics")
    assert reads == ["read"]
