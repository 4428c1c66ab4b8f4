"""Apache Pulsar's Python client, an optional dependency, for commands that send and receive messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from pulsar_on_spark.cli.connection import ClientOptions, client_options
from pulsar_on_spark.cli.extras import missing
from pulsar_on_spark.cli.http_admin import RequestRefusedError, refused_certificate
from pulsar_on_spark.cli.targets import URL_VARIABLE
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pulsar

_DEFAULT_URL: Final = "pulsar://localhost:6650"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}
"""The default ports of the URL schemes."""
_CONNECT_S: Final = 5.0
_TIMEOUT_S: Final = 30

ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--service-url",
        "-u",
        help=f"A broker's pulsar:// or http:// URL [{URL_VARIABLE}, {_DEFAULT_URL}].",
        show_default=False,
    ),
]


class SubscriptionType(Enum):
    """Pulsar's subscription types, with their names on Pulsar's command line."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    def of_client(self) -> pulsar.ConsumerType:
        """Return the member of the Python client's enum that has this meaning."""
        import pulsar

        return pulsar.ConsumerType.__members__[self.value.replace("_", "")]


class SubscriptionPosition(Enum):
    """The start of a new subscription, with its name on Pulsar's command line."""

    LATEST = "Latest"
    EARLIEST = "Earliest"

    def of_client(self) -> pulsar.InitialPosition:
        """Return the member of the Python client's enum that has this meaning."""
        import pulsar

        return pulsar.InitialPosition.__members__[self.value]


@contextmanager
def service_client(url: str | None) -> Iterator[pulsar.Client]:
    """Yield a client of a broker, which is closed at the end of the context.

    Args:
        url: The broker's URL; None for the URL in the environment, in `client.conf`, or the default.

    Raises:
        InvalidArgumentError: Pulsar's client is not installed, or the URL is not the URL of a broker.
        RequestRefusedError: no broker answers at the URL, or the client reports an error within the context.
    """
    try:
        import pulsar
    except ImportError as error:
        raise InvalidArgumentError(missing("pulsar-client", "This command", "client")) from error
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)  # a console logger would write among the results
    options = client_options()
    given = url or os.environ.get(URL_VARIABLE) or options.service_url or _DEFAULT_URL
    _require_listener(given, options)
    try:
        with closing(
            pulsar.Client(
                given,
                authentication=options.credentials.of_client(),
                operation_timeout_seconds=_TIMEOUT_S,
                logger=silent,
                tls_trust_certs_file_path=None if options.trust_certs is None else str(options.trust_certs),
                tls_allow_insecure_connection=options.allow_insecure,
                tls_validate_hostname=options.verify_hostname and not options.allow_insecure,
            )
        ) as client:
            yield client
    except pulsar.PulsarException as error:
        raise RequestRefusedError(
            f"The broker at {given} cannot be reached, or refuses the request ({error}): look at its log, or give "
            "another --url."
        ) from error


def _require_listener(url: str, options: ClientOptions) -> None:
    """Check that a broker listens at a URL; without one, the client would retry for half a minute.

    Args:
        url: The URL, which may name several hosts, separated by commas.
        options: The options of the connection.

    Raises:
        InvalidArgumentError: the URL is not the URL of a broker.
        RequestRefusedError: no broker listens at the URL.
    """
    import socket
    import ssl

    scheme, _, hosts = url.partition("://")
    try:
        default = _PORTS[scheme]
        addresses = [
            (parts.hostname, parts.port or default) for parts in (urlsplit(f"//{host}") for host in hosts.split(","))
        ]
    except (KeyError, ValueError) as error:
        raise InvalidArgumentError(
            f"URL {url!r} is not the URL of a broker: give a URL such as {_DEFAULT_URL} or http://localhost:8080."
        ) from error
    context = options.context() if scheme in ("pulsar+ssl", "https") else None
    causes: list[str] = []
    for address in addresses:
        try:
            with socket.create_connection(address, _CONNECT_S) as connection:
                if context is not None:
                    context.wrap_socket(connection, server_hostname=address[0]).close()
        except ssl.SSLCertVerificationError as error:
            raise refused_certificate(url, error.verify_message) from error
        except OSError as error:
            causes.append(str(error))
        else:
            return
    raise RequestRefusedError(
        f"The broker at {url} does not answer ({', '.join(causes)}): start it, or give another --url."
    )
