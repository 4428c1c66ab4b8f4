"""`pulsarpy standalone`: a broker, with all that it needs, in one process."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from pulsar_on_spark.broker import settings as broker_settings
from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.settings import BrokerSettings
from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import RootArgument, RootOption, open_root, root_path
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.errors import JournalFencedError, PulsarpyError
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.topic.root import Root

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0001
"""A journal path's thread that comes back from a system call waits no longer for the interpreter (bench.journal)."""
GC_THRESHOLD = (10_000, 10, 10)
"""Entries under way and in the cache are many objects without cycles. With Python's (700, 10, 10) looking through them
took 13 % of a loop that does little but make and keep 400,000 of them, and up to 10 ms at once; so it takes 4 %."""

Port = Annotated[int | None, typer.Option(help="Where clients connect [6650]; 0 takes a free one.")]
WebPort = Annotated[int | None, typer.Option(help="Where HTTP is served [8080]; 0 takes a free one.")]
JournalQuorum = Annotated[
    str | None, typer.Option("--quorum", metavar="E/W/A", help="Copies of the journal; the root's quorum by default.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Level = Annotated[str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR [INFO].")]
Format = Annotated[str | None, typer.Option("--log-format", help="text, or json: an object a line [text].")]


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
    """Serve a root to Pulsar clients until SIGTERM or SIGINT; make the root if there is none."""
    path = root_path(root, root_option)
    settings = _settings(config, broker_port, web_port, log_level, log_format)
    copies = None if quorum is None else Quorum.parse(quorum)
    if not Root.is_occupied(path):
        output.say(f"Making the root {path}")
    _run(path, settings, copies)


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
    """Serve a root that is there; so far one broker serves a root at a time."""
    settings = _settings(config, broker_port, web_port, log_level, log_format)
    copies = None if quorum is None else Quorum.parse(quorum)
    _run(open_root(root, root_option).path, settings, copies)


def _settings(
    config: Path | None, broker_port: int | None, web_port: int | None, log_level: str | None, log_format: str | None
) -> BrokerSettings:
    flags = {
        "broker_service_port": broker_port,
        "web_service_port": web_port,
        "log_level": None if log_level is None else log_level.upper(),
        "log_format": log_format,
    }
    return broker_settings.load(config, flags=flags)


def _run(path: Path, settings: BrokerSettings, quorum: Quorum | None) -> None:
    logs.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(_serve(path, settings, quorum))
    except (PulsarpyError, OSError) as error:
        if settings.log_format == "text":
            raise
        log.critical("%s", error)
        raise typer.Exit(1) from error


async def _serve(path: Path, settings: BrokerSettings, quorum: Quorum | None) -> None:
    """Raises `JournalFencedError` if another broker took over."""
    running = await Broker.start(path, settings, quorum)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    gc.freeze()  # what is there now stays: no collection need look at it
    gc.set_threshold(*GC_THRESHOLD)
    _greet(running)
    waiting = loop.create_task(running.wait())
    asking = loop.create_task(asked.wait())
    await asyncio.wait((waiting, asking), return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        await running.abandon()
        raise JournalFencedError(f"The broker of {path} is over ({waiting.result()}): start it again.")
    waiting.cancel()
    log.info("Draining: clients are sent away, and what they published is acknowledged.")
    await running.stop()
    log.info("The broker of %s has ended.", path)


def _greet(running: Broker) -> None:
    root = running.root.path
    output.say(f"Serving {root} at {running.service_url} and {running.web_url}")
    output.say(
        f"""
  # pip install pulsar-client
  import pulsar
  client = pulsar.Client("{running.service_url}")
  client.create_producer("orders").send(b"hello")

  # the same topic in Spark
  spark.readStream.format("pulsarpy").option("topic", "orders").load("{root}")
"""
    )
    sys.stdout.flush()
