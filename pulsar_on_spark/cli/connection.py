"""Connections over TLS for commands with `--url`: common options, named as those of `pulsar-admin`.

`with_tls_options` adds the options to the commands, which do not pass them on: `client_tls` returns their values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    import ssl

_PANEL: Final = "TLS"
_Trust = Annotated[
    Path | None,
    typer.Option(
        "--tls-trust-cert-path",
        envvar="PULSARPY_TLS_TRUST_CERT_PATH",
        help="A PEM file of the CAs that the command trusts; those of the system by default.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
_Insecure = Annotated[
    bool, typer.Option("--tls-allow-insecure", help="Accept every certificate.", rich_help_panel=_PANEL)
]
_Hostname = Annotated[
    bool,
    typer.Option(
        "--tls-enable-hostname-verification/--tls-disable-hostname-verification",
        help="Refuse a certificate of another host.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS options of a command.

    Attributes:
        trust_certs: PEM file of the trusted CAs; None for those of the system.
        allow_insecure: True to accept every certificate.
        verify_hostname: False to accept a trusted certificate of another host.
    """

    trust_certs: Path | None = None
    allow_insecure: bool = False
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Create the context of a connection.

        Raises:
            InvalidArgumentError: the file of CAs cannot be used.
        """
        from pulsar_on_spark.security.tls import client_context

        return client_context(
            self.trust_certs, allow_insecure=self.allow_insecure, verify_hostname=self.verify_hostname
        )


_DEFAULT: Final = ClientTls()
_OF_COMMAND: ContextVar[ClientTls] = ContextVar("_OF_COMMAND", default=_DEFAULT)


def client_tls() -> ClientTls:
    """Return the TLS options of the command that runs."""
    return _OF_COMMAND.get()


def with_tls_options(app: typer.Typer) -> None:
    """Add the TLS options to all commands of a program that take a URL."""
    for command in app.registered_commands:
        if command.callback is not None and "url" in inspect.signature(command.callback).parameters:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_tls_options(group.typer_instance)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(
        *arguments: Any, trust_certs: Path | None, allow_insecure: bool, verify_hostname: bool, **options: Any
    ) -> Any:
        _OF_COMMAND.set(ClientTls(trust_certs, allow_insecure, verify_hostname))
        return command(*arguments, **options)

    own = inspect.signature(command, eval_str=True)
    added = {
        "trust_certs": inspect.Parameter("trust_certs", _KEYWORD, default=None, annotation=_Trust),
        "allow_insecure": inspect.Parameter("allow_insecure", _KEYWORD, default=False, annotation=_Insecure),
        "verify_hostname": inspect.Parameter("verify_hostname", _KEYWORD, default=True, annotation=_Hostname),
    }
    signature = own.replace(parameters=[*own.parameters.values(), *added.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return run


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
