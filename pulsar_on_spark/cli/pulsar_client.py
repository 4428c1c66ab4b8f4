"""Apache Pulsar's Python client for commands that send and receive: an extra that need not be installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pulsar_on_spark.cli.http_admin import RequestRefusedError
from pulsar_on_spark.cli.targets import URL_VARIABLE
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pulsar

_DEFAULT_URL: Final = "pulsar://localhost:6650"
_TIMEOUT_S: Final = 30
_MISSING: Final = "This takes Pulsar's client, which is not installed: `pip install 'pulsar-on-spark[client]'`."

ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--url", help=f"A broker's pulsar:// or http:// URL [{URL_VARIABLE}, {_DEFAULT_URL}].", show_default=False
    ),
]


def service_client(url: str | None) -> pulsar.Client:
    """A client of a broker.

    Raises:
        InvalidArgumentError: the client is not installed.
    """
    try:
        import pulsar
    except ImportError as error:
        raise InvalidArgumentError(_MISSING) from error
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    given = url or os.environ.get(URL_VARIABLE) or _DEFAULT_URL
    return pulsar.Client(given, operation_timeout_seconds=_TIMEOUT_S, logger=quiet)


@contextmanager
def pulsar_errors() -> Iterator[None]:
    """The client's errors as one sentence.

    Raises:
        RequestRefusedError: in place of any of them.
        InvalidArgumentError: the client is not installed.
    """
    try:
        import pulsar
    except ImportError as error:
        raise InvalidArgumentError(_MISSING) from error
    try:
        yield
    except pulsar.PulsarException as error:
        raise RequestRefusedError(
            f"The broker cannot be reached, or refuses ({error}): look at its log, or give another --url."
        ) from error
