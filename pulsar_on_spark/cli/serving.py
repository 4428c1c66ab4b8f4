"""A broker's process, from its start until a signal ends it.

Only the commands that serve a root import this module, because importing the broker and its web server would double the
start-up time of other commands.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys

import uvloop

from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.cli import output
from pulsar_on_spark.model.arrow_start import start_arrow_without_pandas
from pulsar_on_spark.model.errors import JournalFencedError
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.root_place import RootPlace

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0001
"""Python's switch interval in seconds: the longest wait for the interpreter's lock after a system call.

The threads of journal paths need a short interval (bench.journal).
"""
GC_THRESHOLD = (10_000, 10, 10)
"""Thresholds of Python's garbage collector, for the many objects of in-flight and cached entries, without cycles.

With Python's defaults (700, 10, 10), the collector took 13 % of the time of a loop that mostly creates and keeps
400,000 such objects, with pauses of up to 10 ms. With these thresholds it takes 4 %.
"""


def serve(place: RootPlace, settings: BrokerSettings, quorum: Quorum | None) -> None:
    """Serve a root until SIGTERM or SIGINT.

    Args:
        place: The root's folder or URL.
        settings: The broker's settings.
        quorum: The quorum of the broker's journal; None for the quorum of the root.

    Raises:
        JournalFencedError: the broker has ended by itself, for example because another broker has taken over.
        PulsarpyError, OSError: the broker cannot be started.
    """
    start_arrow_without_pandas()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(_serve(place, settings, quorum))


async def _serve(place: RootPlace, settings: BrokerSettings, quorum: Quorum | None) -> None:
    """Serve the root until a signal ends the process (arguments and errors as `serve`)."""
    running = await Broker.start(place, settings, quorum)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if settings.audit_log_file:
        loop.add_signal_handler(signal.SIGHUP, running.reopen_audit)
    gc.freeze()  # objects of the start-up are never freed, so collections can skip them
    gc.set_threshold(*GC_THRESHOLD)
    _greet(running)
    waiting = loop.create_task(running.wait())
    asking = loop.create_task(asked.wait())
    await asyncio.wait((waiting, asking), return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        await running.abandon()
        raise JournalFencedError(f"The broker of {place} has ended ({waiting.result()}): start it again.")
    waiting.cancel()
    log.info("Draining: disconnecting clients after their published messages are acknowledged.")
    await running.stop()
    log.info("The broker of %s has ended.", place)


def _greet(running: Broker) -> None:
    root = running.root.place
    urls = running.listeners.default
    both = ((urls.service_url, urls.service_url_tls), (urls.web_url, urls.web_url_tls))
    tls = " and ".join(with_tls for plain, with_tls in both if plain and with_tls)
    with_tls = f", with TLS at {tls}" if tls else ""
    output.say(f"Serving {root} at {running.service_url} and {running.web_url}{with_tls}")
    example = f"""
  # pip install pulsar-client
  import pulsar
  client = pulsar.Client("{running.service_url}")
  client.create_producer("orders").send(b"hello")

  # the same topic in Spark
  spark.readStream.format("pulsarpy").option("topic", "orders").load("{root}")
"""
    for line in example.split("\n"):
        output.say(line)
    sys.stdout.flush()
