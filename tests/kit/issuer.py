"""An OpenID issuer on this host: metadata, keys and tokens for client credentials, over HTTPS or HTTP."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "pulsar"
METADATA, KEYS, TOKEN = "/.well-known/openid-configuration", "/keys", "/token"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Issuer:
    """An issuer; what it answers at a path can be replaced.

    Args:
        context: The TLS of its server; None for plain HTTP.

    Attributes:
        url: Its name, which is its URL, too.
        answers: Answers that replace the usual ones, by path.
        requests: The paths that were requested.
        published: The keys that it publishes, by name.
        lives_s: Seconds that the tokens of a client live, by its id; 600 if it is not in here.
        given: Tokens given to clients, by their ids.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                if self.path in outer.answers:
                    outer.answers[self.path](self)
                elif self.path == METADATA:
                    say(self, outer.metadata())
                elif self.path == KEYS:
                    say(self, {"keys": [jwk(name, key) for name, key in outer.published.items()]})
                else:
                    self.send_error(404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = json.loads(body) if body.startswith("{") else {k: v[0] for k, v in parse_qs(body).items()}
                if given.get("client_secret") == "secret":
                    role = given["client_id"]
                    lives_s = outer.lives_s.get(role, 600)
                    outer.given[role] += 1
                    # Clients get a new one a second before the broker needs it.
                    token = outer.token(role, exp=time.time() + lives_s)
                    say(self, {"access_token": token, "expires_in": lives_s - 1})
                else:
                    self.send_error(401)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.lives_s: dict[str, int] = {}
        self.given = Counter[str]()
        self.published: dict[str, Any] = {"first": rsa.generate_private_key(65537, 2048)}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Issuer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer nothing from now on."""
        self._server.shutdown()
        self._server.server_close()

    def metadata(self, **others: Any) -> dict[str, Any]:
        """The usual metadata, with changes."""
        return {"issuer": self.url, "jwks_uri": self.url + KEYS, "token_endpoint": self.url + TOKEN, **others}

    def token(self, role: str = "orders", key: str = "first", **claims: Any) -> str:
        """A token by one of the published keys; claims that are None are left out."""
        signing = self.published[key]
        return signed({"iss": self.url, "sub": role, **claims}, signing, kid=key)


def signed(claims: dict[str, Any], key: Any, **headers: Any) -> str:
    """A token by any key, for the usual audience and ten minutes."""
    usual = {"aud": AUDIENCE, "exp": time.time() + 600}
    filled = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.encode(filled, key, algorithm, headers=headers)


def jwk(name: str, key: Any, **others: Any) -> dict[str, Any]:
    """The public half of a key, as issuers publish it."""
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig", **others}


def new_ec_key() -> ec.EllipticCurvePrivateKey:
    """A key of the kind of ES256."""
    return ec.generate_private_key(ec.SECP256R1())


def say(request: BaseHTTPRequestHandler, content: object, status: int = 200, **headers: str) -> None:
    """Answer with JSON."""
    body = json.dumps(content).encode()
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
