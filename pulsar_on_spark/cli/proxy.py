"""`pulsarpy proxy`: one address for all brokers of a root."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import RootArgument, RootOption, listed, open_root
from pulsar_on_spark.cli.extras import missing
from pulsar_on_spark.cli.standalone import Format, Level
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pulsar_on_spark.proxy.brokers import Brokers

Listed = Annotated[
    list[str] | None,
    typer.Option("--brokers", metavar="URL", help="The brokers, instead of those registered in a root."),
]
Address = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")]
ServicePort = Annotated[int, typer.Option(help="The port for clients; 0 chooses a free one, -1 opens none.")]
ServicePortTls = Annotated[int, typer.Option(help="The port for clients with TLS, usually 6651; -1 opens none.")]
Certificate = Annotated[Path | None, typer.Option(help="A PEM file of the proxy's certificate.", show_default=False)]
Key = Annotated[Path | None, typer.Option(help="A PEM file of the certificate's private key.", show_default=False)]
Trust = Annotated[
    Path | None,
    typer.Option("--broker-trust-certs", help="A PEM file of the CAs of brokers with TLS.", show_default=False),
]


def proxy(
    root: RootArgument = None,
    root_option: RootOption = None,
    brokers: Listed = None,
    bind_address: Address = "127.0.0.1",
    service_port: ServicePort = 6650,
    service_port_tls: ServicePortTls = -1,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    broker_trust_certs: Trust = None,
    log_level: Level = None,
    log_format: Format = None,
) -> None:
    """Connect Pulsar clients to the brokers of a root, or to listed brokers, until SIGTERM or SIGINT."""
    level, form = (log_level or "INFO").upper(), log_format or "text"
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR") or form not in ("text", "json"):
        raise InvalidArgumentError(f"Log level {level} or log format {form} is unknown: give one that --help lists.")
    logs.configure(level, form)  # type: ignore[arg-type]
    try:
        import uvloop

        from pulsar_on_spark.proxy.proxy import Proxy, ProxySettings, run_until_signal, tls_of
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        raise InvalidArgumentError(missing(error.name, "A proxy", "broker")) from error
    settings = ProxySettings(
        bind_address,
        None if service_port < 0 else service_port,
        None if service_port_tls < 0 else service_port_tls,
        tls_of(tls_certificate, tls_key),
        broker_trust_certs,
    )
    known, name = _brokers(brokers, root, root_option)

    async def serve() -> None:
        running = Proxy(known, settings)
        await running.start()
        output.say(f"Serving {name} at {', with TLS at '.join(running.urls)}")
        sys.stdout.flush()
        await run_until_signal(running)

    uvloop.run(serve())


def _brokers(urls: list[str] | None, root: str | None, root_option: str | None) -> tuple[Brokers, str]:
    """Return the brokers of a proxy, and the text by which the program's output names them.

    Args:
        urls: The URLs of `--brokers`; None or empty for the registered brokers of the root.
        root: The argument for the root; None if it is absent.
        root_option: The option `--root`; None if it is absent.
    """
    from pulsar_on_spark.proxy.brokers import ListedBrokers, RegisteredBrokers

    given = listed(urls or ())
    if given:
        return ListedBrokers(given), f"the brokers of {','.join(given)}"
    opened = open_root(root, root_option)
    return RegisteredBrokers(opened), f"the brokers of {opened.place}"
