"""The client of a broker's admin API (Pulsar's admin REST API v2), whose errors are one sentence each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.names import TopicName, check_namespace

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.error import HTTPError
    from urllib.request import OpenerDirector

    from pulsar_on_spark.cli.connection import ClientOptions

TIMEOUT_S: Final = 60.0
"""Time limit of a request in seconds, long enough for the takeover of a subscription, which may last a lease period."""


class RequestRefusedError(PulsarpyError):
    """Error of a request that a broker refused or did not answer.

    Attributes:
        status: The HTTP status; 0 without an answer.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer to a request.

    Attributes:
        headers: The headers, by their names in lower case.
        content: The body, which may be empty.
    """

    headers: Mapping[str, str]
    content: bytes

    @classmethod
    def read(cls, response: HTTPResponse | HTTPError) -> Answer:
        """Return the answer in a response, after reading the response to its end."""
        # Python decodes headers as Latin-1; brokers write properties of messages in UTF-8.
        headers = {name.lower(): value.encode("latin-1").decode() for name, value in response.headers.items()}
        return cls(headers, response.read())


class HttpAdmin:
    """Client of one broker's admin API.

    Args:
        url: The broker's HTTP URL, such as `http://localhost:8080`.
        tls: The options of the connection: credentials and, for an HTTPS URL, TLS.

    Raises:
        InvalidArgumentError: the URL is not an HTTP URL, or a TLS file cannot be used.
    """

    def __init__(self, url: str, tls: ClientOptions) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                f"URL {url!r} is not an HTTP URL: give the URL of a broker, such as http://localhost:8080."
            )
        self.url = url.rstrip("/")
        self._headers = tls.credentials.headers()
        self._tls = tls.context() if url.startswith("https://") else None

    def get(self, *path: str, **params: object) -> Any:
        """Send a GET request for a path, and return the answer's JSON; None without content (errors as `request`)."""
        return self._content(self.request("GET", path, params))

    def change(self, method: str, *path: str, body: object = None, **params: object) -> Any:
        """Send a request that changes something, and return the answer's JSON; None without content.

        Errors are as in `request`.
        """
        return self._content(self.request(method, path, params, body))

    def is_partitioned(self, topic: str) -> bool:
        """Return True if a topic has partitions (errors as `request`)."""
        return bool(self.get(*topic_path(topic), "partitions")["partitions"])

    def request(self, method: str, path: Iterable[str], params: Mapping[str, object], body: object = None) -> Answer:
        """Send one request and return the answer.

        Raises:
            RequestRefusedError: the broker refuses the request, or cannot be reached.
        """
        from http.client import HTTPException
        from ssl import SSLCertVerificationError
        from urllib.error import HTTPError
        from urllib.request import Request

        url = "/".join((self.url, "admin", "v2", *(quote(part, safe="") for part in path)))
        if params:
            url += "?" + urlencode({name: _as_param(value) for name, value in params.items()})
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": "application/json"}
        try:
            with self._opener.open(Request(url, content, headers, method=method), timeout=TIMEOUT_S) as response:
                return Answer.read(response)
        except HTTPError as error:
            raise RequestRefusedError(_reason(error, f"{method} {url}"), error.code) from error
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a URL that is not valid
            reason = getattr(error, "reason", error)
            if isinstance(reason, SSLCertVerificationError):
                raise refused_certificate(self.url, reason.verify_message) from error
            raise RequestRefusedError(
                f"The broker at {self.url} does not answer ({reason}): start it, or give another --url."
            ) from error

    @cached_property
    def _opener(self) -> OpenerDirector:
        """The sender of requests, which follows redirects. Cached, because loading the trusted CAs is slow."""
        from urllib.request import HTTPSHandler, build_opener

        from pulsar_on_spark.cli.http_redirects import RedirectsToOwners

        return build_opener(RedirectsToOwners, *([HTTPSHandler(context=self._tls)] if self._tls else []))

    def _content(self, answer: Answer) -> Any:
        if not answer.content:
            return None
        try:
            return json.loads(answer.content)
        except ValueError as error:
            raise RequestRefusedError(
                f"The server at {self.url} is not a broker, because its answer is not JSON: give another --url."
            ) from error


def refused_certificate(url: str, reason: str) -> RequestRefusedError:
    """Return the error for a broker's certificate that this client refuses for `reason`."""
    return RequestRefusedError(
        f"The certificate of the broker at {url} is refused ({reason.rstrip('.')}): give the CA that issued it as "
        "--tls-trust-cert-path, and a host name that the certificate contains."
    )


def topic_path(topic: str) -> tuple[str, str, str, str]:
    """Return the admin API's path of a topic, which is given by its short or full name.

    Raises:
        InvalidArgumentError: the text is not a topic's name.
    """
    name = TopicName.parse_any(topic)
    tenant, namespace = name.namespace.split("/")
    return name.domain, tenant, namespace, name.local


def namespace_path(namespace: str) -> tuple[str, str, str]:
    """Return the admin API's path of a namespace.

    Raises:
        InvalidArgumentError: the text is not a namespace's name.
    """
    tenant, _, name = check_namespace(namespace).partition("/")
    return "namespaces", tenant, name


def _as_param(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(refusal: HTTPError, request: str) -> str:
    try:
        return str(json.loads(refusal.read())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"The broker answered {refusal.code} to {request}: see the broker's log."
