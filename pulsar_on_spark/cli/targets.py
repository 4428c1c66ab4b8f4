"""The choice between a root and a broker as the target of a command.

The target is the first one that is given of these: `--url`; the root, by the argument, `--root` or `PULSARPY_ROOT`; the
broker at `PULSARPY_URL`; the broker in `client.conf`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pulsar_on_spark.cli.arguments import is_in_command, open_root
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.connection import client_options
from pulsar_on_spark.cli.http_admin import HttpAdmin
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.root_path import ROOT_VARIABLE

if TYPE_CHECKING:
    from pulsar_on_spark.cli.root_target import RootTarget

URL_VARIABLE: Final = "PULSARPY_URL"
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"A broker's HTTP URL, instead of a root [{URL_VARIABLE}].", show_default=False),
]


def open_target(argument: str | None, option: str | None, url: str | None) -> RootTarget | BrokerTarget:
    """Open the root or broker that the command or the environment names. In the environment, a root takes precedence.

    Args:
        argument: The command's argument for the root; None if it is absent.
        option: The option `--root`, which Typer fills in from PULSARPY_ROOT; None if neither is given.
        url: The option `--url`; None if it is absent.

    Raises:
        InvalidArgumentError: neither a root nor a URL is given, or the command gives both.
        PulsarpyError: the root cannot be opened.
    """
    if url is not None and (argument is not None or is_in_command(option)):
        raise InvalidArgumentError("Both a root and --url are given: give one of them.")
    if url is None and argument is None and option is None:
        url = default_url()
        if url is None:
            raise InvalidArgumentError(
                f"Neither a root nor a broker is given: add --root or --url, or set {ROOT_VARIABLE} or {URL_VARIABLE}."
            )
    if url is not None:
        return BrokerTarget(HttpAdmin(url, client_options()))
    from pulsar_on_spark.cli.root_target import RootTarget

    return RootTarget(open_root(argument, option))


def default_url() -> str | None:
    """Return the broker's HTTP URL from PULSARPY_URL or else from `client.conf`; None if neither has one."""
    return os.environ.get(URL_VARIABLE) or client_options().web_url


def open_broker(url: str | None) -> HttpAdmin:
    """Return the admin API of a broker, for a command that needs a broker.

    Args:
        url: The option `--url`; None for the URL of `default_url`.

    Raises:
        InvalidArgumentError: no URL is given, or it is not an HTTP URL.
    """
    given = url or default_url()
    if given is None:
        raise InvalidArgumentError(f"This command needs a broker: give its HTTP URL as --url, or set {URL_VARIABLE}.")
    return HttpAdmin(given, client_options())
