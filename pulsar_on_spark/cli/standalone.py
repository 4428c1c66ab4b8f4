"""`pulsarpy standalone` and `broker`: serve a root as a broker."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import RootArgument, RootOption, open_root, root_place
from pulsar_on_spark.cli.extras import missing
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError, sentence_of
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.root_place import RootPlace

if TYPE_CHECKING:
    from pulsar_on_spark.broker.runtime.settings import BrokerSettings

log = logging.getLogger(__name__)

MODULES_OF_CHILDREN: Final = (
    "pulsar_on_spark.topic.managed_ledger.sealing.process",
    "pulsar_on_spark.broker.reading.process",
)
"""The modules that a broker's child processes run."""

Port = Annotated[int | None, typer.Option(help="The port for clients [6650]; 0 chooses a free one.")]
WebPort = Annotated[int | None, typer.Option(help="The port for HTTP [8080]; 0 chooses a free one.")]
JournalQuorum = Annotated[
    str | None, typer.Option("--quorum", metavar="E/W/A", help="Quorum of the journal; by default, the root's.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Level = Annotated[str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR [INFO].")]
Format = Annotated[str | None, typer.Option("--log-format", help="text (the default), or json: one object a line.")]


def standalone(
    root: RootArgument = None,
    root_option: RootOption = None,
    broker_port: Port = None,
    web_port: WebPort = None,
    quorum: JournalQuorum = None,
    config: Config = None,
    log_level: Level = None,
    log_format: Format = None,
) -> None:
    """Serve a root to Pulsar clients until SIGTERM or SIGINT; create the root if it is missing."""
    place = root_place(root, root_option)
    settings = _settings(config, broker_port, web_port, log_level, log_format)
    copies = None if quorum is None else Quorum.parse(quorum)
    from pulsar_on_spark.root import Root

    if not Root.is_occupied(place):
        output.say(f"Creating the root {place}")
    _run(place, settings, copies)


def broker(
    root: RootArgument = None,
    root_option: RootOption = None,
    broker_port: Port = None,
    web_port: WebPort = None,
    quorum: JournalQuorum = None,
    config: Config = None,
    log_level: Level = None,
    log_format: Format = None,
) -> None:
    """Serve an existing root to Pulsar clients, alone or beside its other brokers, until SIGTERM or SIGINT."""
    settings = _settings(config, broker_port, web_port, log_level, log_format)
    copies = None if quorum is None else Quorum.parse(quorum)
    _run(open_root(root, root_option).place, settings, copies)


def _settings(
    config: Path | None, broker_port: int | None, web_port: int | None, log_level: str | None, log_format: str | None
) -> BrokerSettings:
    from pulsar_on_spark.broker.runtime import settings

    flags = {
        "broker_service_port": broker_port,
        "web_service_port": web_port,
        "log_level": None if log_level is None else log_level.upper(),
        "log_format": log_format,
    }
    loaded = settings.load(config, flags=flags)
    settings.remove_secrets(os.environ)
    return loaded


def _run(place: RootPlace, settings: BrokerSettings, quorum: Quorum | None) -> None:
    logs.configure(settings.log_level, settings.log_format)
    from pulsar_on_spark.topic.catalog.giving_way import start_fork_server

    start_fork_server(MODULES_OF_CHILDREN)  # before the imports of the broker, which take as long
    try:
        from pulsar_on_spark.cli.serving import serve
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        raise InvalidArgumentError(missing(error.name, "A broker", "broker")) from error
    try:
        serve(place, settings, quorum)
    except (PulsarpyError, OSError) as error:
        if settings.log_format == "text":
            raise
        log.critical("%s", sentence_of(error) if isinstance(error, OSError) else error)
        raise typer.Exit(1) from error
