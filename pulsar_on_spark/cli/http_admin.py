"""The client of a broker's admin API: paths of Pulsar's admin REST v2, errors as one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.names import TopicName, check_namespace

if TYPE_CHECKING:
    import ssl

    import httpx

    from pulsar_on_spark.cli.connection import ClientOptions

TIMEOUT_S: Final = 60.0
"""Time limit of a request: taking over a subscription may last as long as a lease."""


_REDIRECTS: Final = 5
"""Maximum number of redirections of a request."""


class RequestRefusedError(PulsarpyError):
    """A broker refused a request or did not answer.

    Attributes:
        status: The HTTP status; 0 if there was no answer.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class HttpAdmin:
    """The admin API of one broker.

    Args:
        url: The broker's HTTP URL, such as `http://localhost:8080`.
        tls: The TLS options of an HTTPS URL.

    Raises:
        InvalidArgumentError: the URL is not an HTTP URL, or the file of trusted CAs cannot be used.
    """

    def __init__(self, url: str, tls: ClientOptions) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                f"URL {url!r} is not an HTTP URL: give a broker's, such as http://localhost:8080."
            )
        self.url = url.rstrip("/")
        self._headers = tls.credentials.headers()
        self._tls = tls.context() if url.startswith("https://") else None

    def get(self, *path: str, **params: object) -> Any:
        """Return the content of a path; None for no content (errors as `request`)."""
        return self._content(self.request("GET", path, params))

    def change(self, method: str, *path: str, body: object = None, **params: object) -> Any:
        """Change the content of a path and return the answer, if any (errors as `request`)."""
        return self._content(self.request(method, path, params, body))

    def is_partitioned(self, topic: str) -> bool:
        """True if a topic has partitions (errors as `request`)."""
        return bool(self.get(*topic_path(topic), "partitions")["partitions"])

    def request(
        self, method: str, path: Iterable[str], params: Mapping[str, object], body: object = None
    ) -> httpx.Response:
        """Send one request and return the response.

        Raises:
            RequestRefusedError: the broker refuses the request, or cannot be reached.
        """
        import httpx

        url = "/".join((self.url, "admin", "v2", *(quote(part, safe="") for part in path)))
        given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()}
        try:
            with httpx.Client(headers=self._headers, timeout=TIMEOUT_S, verify=self._trusted) as client:
                request = client.build_request(method, url, params=given, json=body)  # type: ignore[arg-type]
                answer = client.send(request)
                for _ in range(_REDIRECTS):
                    if answer.next_request is None:
                        break
                    # The addressed broker redirects to the topic's broker, which needs the credentials, too.
                    answer.next_request.headers.update(self._headers)
                    answer = client.send(answer.next_request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _, is_refused, reason = str(error).partition("certificate verify failed: ")
            if is_refused:
                raise refused_certificate(self.url, reason.partition(" (_ssl")[0]) from error
            raise RequestRefusedError(
                f"The broker at {self.url} does not answer ({error}): start it, or give another --url."
            ) from error
        if not answer.is_success:
            raise RequestRefusedError(_reason(answer), answer.status_code)
        return answer

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """The trusted CAs, read once, because that takes longer than a request; public CAs for redirects to HTTPS."""
        import httpx

        return self._tls or httpx.create_ssl_context()

    def _content(self, answer: httpx.Response) -> Any:
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise RequestRefusedError(
                f"The server at {self.url} is not a broker: {answer.request.url.path} is not JSON; give another --url."
            ) from error


def refused_certificate(url: str, reason: str) -> RequestRefusedError:
    """Return the error for a refused certificate of a broker."""
    return RequestRefusedError(
        f"The certificate of the broker at {url} is refused ({reason.rstrip('.')}): give the CA that issued it as "
        "--tls-trust-cert-path, and a host name that the certificate contains."
    )


def topic_path(topic: str) -> tuple[str, str, str, str]:
    """Return the path of a topic, given by its short or full name.

    Raises:
        InvalidArgumentError: it is not a topic's name.
    """
    name = TopicName.parse_any(topic)
    tenant, namespace = name.namespace.split("/")
    return name.domain, tenant, namespace, name.local


def namespace_path(namespace: str) -> tuple[str, str, str]:
    """Return the path of a namespace.

    Raises:
        InvalidArgumentError: it is not a namespace's name.
    """
    tenant, _, name = check_namespace(namespace).partition("/")
    return "namespaces", tenant, name


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        return f"The broker answered {answer.status_code} to {answer.request.method} {answer.request.url.path}."
