"""Options of TLS and credentials for commands with `--url`, named as in `pulsar-admin`.

`with_client_options` adds the options to commands, and `client_options` returns their values, so that commands need not
pass them on. A missing option is taken from Pulsar's `client.conf`, if the environment variable PULSAR_CLIENT_CONF
names such a file.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsar_on_spark.cli.credentials import CLIENT_CONF_VARIABLE, Credentials, read_client_conf

if TYPE_CHECKING:
    import ssl

_NONE: Final = Credentials()
_PANEL: Final = "Connection"
_Trust = Annotated[
    Path | None,
    typer.Option(
        "--tls-trust-cert-path",
        envvar="PULSARPY_TLS_TRUST_CERT_PATH",
        help="A PEM file of the CAs that the command trusts; by default the system's CAs.",
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
_Plugin = Annotated[
    str | None,
    typer.Option(
        "--auth-plugin",
        help=f"The way to authenticate: token, basic or tls, or the name of Pulsar's class [{CLIENT_CONF_VARIABLE}].",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
_Params = Annotated[
    str | None,
    typer.Option(
        "--auth-params",
        help="Parameters of --auth-plugin, such as file:///PATH of a token; other users of this host can see them.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a command's connection.

    Attributes:
        trust_certs: PEM file of the trusted CAs; None for the system's CAs.
        allow_insecure: True to accept every certificate.
        verify_hostname: False to accept a trusted certificate of another host.
        credentials: The client's credentials.
        web_url: The broker's HTTP URL from `client.conf`; None without one.
        service_url: The broker's service URL, for messages, from `client.conf`; None without one.
    """

    trust_certs: Path | None = None
    allow_insecure: bool = False
    verify_hostname: bool = True
    credentials: Credentials = _NONE
    web_url: str | None = None
    service_url: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection.

        Raises:
            InvalidArgumentError: the file of CAs, or the client's certificate or key, cannot be used.
        """
        from pulsar_on_spark.security.tls import client_context

        context = client_context(
            self.trust_certs, allow_insecure=self.allow_insecure, verify_hostname=self.verify_hostname
        )
        self.credentials.load_certificate(context)
        return context


_DEFAULT: Final = ClientOptions()
_OF_COMMAND: ContextVar[ClientOptions] = ContextVar("_OF_COMMAND", default=_DEFAULT)


def client_options() -> ClientOptions:
    """Return the connection options of the running command; the defaults if the command has no such options."""
    return _OF_COMMAND.get()


def with_client_options(app: typer.Typer) -> None:
    """Add the connection options to all commands of a program that have a parameter `url`."""
    for command in app.registered_commands:
        if command.callback is not None and "url" in inspect.signature(command.callback).parameters:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_client_options(group.typer_instance)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(
        *arguments: Any,
        trust_certs: Path | None,
        allow_insecure: bool,
        verify_hostname: bool,
        auth_plugin: str | None,
        auth_params: str | None,
        **options: Any,
    ) -> Any:
        file = os.environ.get(CLIENT_CONF_VARIABLE)
        conf = read_client_conf(file) if file else {}
        if trust_certs is None and "tlsTrustCertsFilePath" in conf:
            trust_certs = Path(conf["tlsTrustCertsFilePath"])
        allow_insecure = allow_insecure or conf.get("tlsAllowInsecureConnection", "").lower() == "true"
        if auth_plugin is None:
            auth_plugin, auth_params = conf.get("authPlugin", ""), auth_params or conf.get("authParams", "")
        credentials = Credentials.parse(auth_plugin, auth_params or "")
        urls = (conf.get("webServiceUrl"), conf.get("brokerServiceUrl"))
        _OF_COMMAND.set(ClientOptions(trust_certs, allow_insecure, verify_hostname, credentials, *urls))
        return command(*arguments, **options)

    own = inspect.signature(command, eval_str=True)
    added = {
        "trust_certs": inspect.Parameter("trust_certs", _KEYWORD, default=None, annotation=_Trust),
        "allow_insecure": inspect.Parameter("allow_insecure", _KEYWORD, default=False, annotation=_Insecure),
        "verify_hostname": inspect.Parameter("verify_hostname", _KEYWORD, default=True, annotation=_Hostname),
        "auth_plugin": inspect.Parameter("auth_plugin", _KEYWORD, default=None, annotation=_Plugin),
        "auth_params": inspect.Parameter("auth_params", _KEYWORD, default=None, annotation=_Params),
    }
    signature = own.replace(parameters=[*own.parameters.values(), *added.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
