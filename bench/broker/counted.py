"""Calls of functions in a broker's event loop for a fixed load, with and without authorization.

Unlike times, numbers of calls do not depend on other work of the machine. Each round sends an entry, waits for its
delivery, acknowledges it, and waits until the acknowledgement is durable.
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from pulsar_on_spark.broker.broker import Broker
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.issuing import new_secret, sign
from pulsar_on_spark.security.keys import secret_key
from pulsar_on_spark.topic.catalog import permissions
from tests.broker.clients.raw import answer, answer_of, command, connect
from tests.kit.pulsar_entries import ClientMessage, batch_entry

MESSAGES: Final = 10
"""Messages of an entry."""
_ROLE: Final = "bench"
RECHECK: Final = "broker/background/recheck"
"""The module that checks every half second for changed permissions."""
_AUTHORIZING: Final = ("security/", "broker/runtime/access", "broker/handlers/command_rules", RECHECK)
"""Modules that authenticate and authorize clients."""
_URLS: Final = "security/listeners"
"""The module of a broker's URLs, which lookups answer."""
_WARM_UP: Final = 100
_WAIT_S: Final = 600.0
_T = TypeVar("_T")


@dataclass
class Calls:
    """Calls of functions in an event loop.

    Attributes:
        all: Number of calls of functions in Python, including resumed generators and coroutines, and in C.
        authorizing: Number of calls of Python functions that authenticate or authorize clients, by module.
        of_rounds: Number of all calls in each round.
        seconds: Duration of the count in seconds.
    """

    all: int = 0
    authorizing: Counter[str] = field(default_factory=Counter)
    of_rounds: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def of_message(self) -> float:
        """Number of calls for a message in the most frequent round, as the broker's other work adds calls to some."""
        return statistics.mode(self.of_rounds) / MESSAGES


@lru_cache
def _authorizing(code: CodeType) -> str | None:
    """Return the module of a function that authenticates or authorizes clients; None for others."""
    _, _, path = code.co_filename.rpartition("/pulsar_on_spark/")
    module = path.removesuffix(".py")
    return module if module.startswith(_AUTHORIZING) and module != _URLS else None


class CountedBroker:
    """A broker on an event loop in a thread of this process.

    Args:
        root: The folder of the broker's root, which is created.
        with_roles: True for a broker with authentication and authorization.

    Attributes:
        url: The URL for clients.
        token: The token of a role that may produce and consume; "" without authentication.
    """

    def __init__(self, root: Path, *, with_roles: bool) -> None:
        settings: dict[str, Any] = {"broker_service_port": 0, "web_service_port": 0}
        self.token = ""
        if with_roles:
            secret = new_secret("HS256")
            self.token = sign(secret_key(secret, "the bench's key"), {"sub": _ROLE})
            settings |= {
                "authentication_enabled": True,
                "authentication_providers": ("token",),
                "token_secret_key": f"data:;base64,{base64.b64encode(secret).decode()}",
                "authorization_enabled": True,
            }
        store = Root.create(root).store
        if with_roles:
            permissions.grant_permission(store, "public/default", _ROLE, ["produce", "consume"])
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._broker = self._do(Broker.start(root, BrokerSettings(**settings)))
        self.url = self._broker.service_url

    @contextmanager
    def counting(self) -> Iterator[Calls]:
        """Count the calls in the event loop while the context is open; the yielded counts are complete at its end."""
        counted, begun_s = Calls(), time.monotonic()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event in ("call", "c_call"):
                counted.all += 1
                if event == "call" and (module := _authorizing(frame.f_code)) is not None:
                    counted.authorizing[module] += 1

        self._do(_set_profile(note))
        yield counted
        self._do(_set_profile(None))
        counted.seconds = time.monotonic() - begun_s

    def stop(self) -> None:
        """Stop the broker and its event loop."""
        self._do(self._broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)


@contextmanager
def counted_broker(root: Path, *, with_roles: bool) -> Iterator[CountedBroker]:
    """Yield a broker that is stopped at the end of the context; the arguments are those of `CountedBroker`."""
    made = CountedBroker(root, with_roles=with_roles)
    try:
        yield made
    finally:
        made.stop()


async def _set_profile(note: Any) -> None:
    sys.setprofile(note)


class Exchange:
    """A connection with a producer and a consumer of one topic, which are opened once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sequence = 0

    @classmethod
    async def open(cls, broker: CountedBroker, topic: str) -> Exchange:
        """Connect to a broker, and return an exchange with an open producer and consumer of the topic."""
        made = cls(*await connect(broker.url, token=broker.token))
        subscribe = CommandSubscribe(
            topic=topic, subscription="s", subType=CommandSubscribe.Exclusive, consumer_id=1, request_id=1
        )
        made._writer.write(command("SUBSCRIBE", subscribe=subscribe))
        assert (await answer(made._reader)).type == BaseCommand.SUCCESS
        made._writer.write(command("PRODUCER", producer=CommandProducer(topic=topic, producer_id=1, request_id=2)))
        assert (await answer(made._reader)).type == BaseCommand.PRODUCER_SUCCESS
        made._writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=1_000_000)))
        return made

    async def run(self, rounds: int, counted: Calls) -> None:
        """Exchange an entry in each round, and add the number of its calls to `counted`."""
        for _ in range(rounds):
            before = counted.all
            self._send()
            message = (await answer_of(self._reader, "MESSAGE")).message
            ack = CommandAck(consumer_id=1, ack_type=CommandAck.Cumulative, request_id=3)
            ack.message_id.append(message.message_id)
            self._writer.write(command("ACK", ack=ack))
            await answer_of(self._reader, "ACK_RESPONSE")
            counted.of_rounds.append(counted.all - before)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    def _send(self) -> None:
        send = CommandSend(producer_id=1, sequence_id=self._sequence, num_messages=MESSAGES)
        entry = batch_entry([ClientMessage(b"%1024d" % self._sequence)] * MESSAGES)
        frame = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
        self._writer.write(frame_of(frame, len(entry)) + entry)
        self._sequence += MESSAGES


def count(broker: CountedBroker, topic: str, rounds: int) -> Calls:
    """Return the counts of calls of `rounds` rounds, after a warm-up."""

    async def exchanged() -> Calls:
        exchange = await Exchange.open(broker, topic)
        await exchange.run(_WARM_UP, Calls())
        with broker.counting() as counted:
            await exchange.run(rounds, counted)
        exchange.close()
        return counted

    return asyncio.run(asyncio.wait_for(exchanged(), _WAIT_S))


def main(
    rounds: Annotated[int, typer.Option(min=1, help=f"Entries of {MESSAGES} messages in a run.")] = 1_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each broker, in turn.")] = 5,
) -> None:
    """Count the calls, and print a table."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-counted-")))
        brokers = [
            running.enter_context(counted_broker(folder / name, with_roles=name == "roles"))
            for name in ("none", "roles")
        ]
        pairs = [[count(broker, f"run-{run}", rounds) for broker in brokers] for run in range(runs)]
    table = Table("calls a message", "none", "roles", "ratio", "authorizing", title=f"{runs} runs of {rounds} entries")
    for plain, roles in pairs:
        figures = (plain.of_message, roles.of_message, roles.of_message / plain.of_message)
        authorizing = roles.authorizing.total() / rounds / MESSAGES
        table.add_row("", *(f"{figure:,.3f}" for figure in figures), f"{authorizing:.4f}")
    ratio = statistics.median(roles.of_message / plain.of_message for plain, roles in pairs)
    table.add_row("median", "", "", f"{ratio:.3f}", "")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
