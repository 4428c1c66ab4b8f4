"""A client's connection: bytes in, commands to their handlers, answers out; and when to stop reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, cast

from google.protobuf.message import Message

from pulsar_on_spark.broker.connection.access import Authentication
from pulsar_on_spark.broker.connection.intake import Intake, Pause
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.server_errors import ServerRefusalError, code_of
from pulsar_on_spark.broker.services import Services
from pulsar_on_spark.broker.subscriptions.subscribed import Subscribed
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.model.errors import ProtocolError, PulsarpyError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.protocol.server import Sent, ServerConnection

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES: Final = 1 << 20
"""What a client may leave unread of what was written to it, before nothing more is delivered to it."""
UNREAD_LIMIT_BYTES: Final = 16 << 20
"""What it may leave unread before nothing more is read from it, either: far above what deliveries and the answers to a
client's outstanding requests come to. Clients that send and receive on one connection stop reading while they wait to
send (the Go client does): if the broker waited to be read, too, neither would go on. Pulsar always reads on."""
LIVENESS_TIMEOUT_S: Final = 5.0
"""How long a client that another one wants to replace is waited for (`connectionLivenessCheckTimeoutMillis`)."""
TURN_COMMANDS: Final = 1_000
"""Commands in one read above which a client is one of many small ones: the others have their turn after every ..."""
TURN_BYTES: Final = 32 << 10
"""... so many bytes of it. (Reads of 256 KiB, up to 32 in a row, are what uvloop would hand over.)"""
MAX_REQUESTS: Final = 5_000
"""Requests of one connection that are not answered; a client that asks more is told to come later."""


class Request(NamedTuple):
    """How a command that is answered is handled.

    Attributes:
        handle: Does it; may raise a `PulsarpyError`.
        refuse: The answer that tells of an error: request id, error, message.
    """

    handle: Callable[[Connection, Any], Awaitable[None]]
    refuse: Callable[[int, ServerError, str], bytes] = replies.error


Signal = Callable[["Connection", Any], None]
"""Handles a command at once; must not raise."""


class Handlers(NamedTuple):
    """What is done with each type of command; others are ignored, as in official brokers.

    Attributes:
        requests: Commands that are answered, after a while.
        signals: Commands that are handled at once.
        sent: A SEND.
        writable_again: The connection takes data again.
        closed: The connection is gone.
    """

    requests: dict[int, Request]
    signals: dict[int, Signal]
    sent: Callable[[Connection, Sent], None]
    writable_again: Callable[[Connection], None]
    closed: Callable[[Connection], None]


class Connection(asyncio.Protocol):
    """A client's connection; see `Peer` for what topics see of it.

    Args:
        services: The broker's parts.
        handlers: What is done with commands.
        registry: All connections, this one among them as long as it is open.

    Attributes:
        role: Who the client is; None as long as that is not known.
        authentication: How that is found out; None before CONNECT.
        auth_method: How the client calls its method.
        producers: Its producers by its own numbers.
        asking: Producers that are not admitted yet.
        consumers: Its consumers by its own numbers; also those that the broker has sent away.
        wanted: What is not connected yet and still wanted: (type of its command, its number) -> its request.
        is_asked: A PING is on its way to it.
    """

    def __init__(self, services: Services, handlers: Handlers, registry: set[Connection]) -> None:
        self.services = services
        self.address = ""
        self.client_version = ""
        self.protocol_version = 0
        self.role: str | None = None
        self.authentication: Authentication | None = None
        self.auth_method = ""
        self.is_closed = False
        self.is_writable = True
        self.producers: dict[int, Producer] = {}
        self.asking: dict[int, tuple[AnyTopic, ProducerInfo]] = {}
        self.consumers: dict[int, Subscribed] = {}
        self.wanted: dict[tuple[int, int], int] = {}
        self.is_asked = False
        self._probe: asyncio.Future[None] | None = None
        self._handlers = handlers
        self._registry = registry
        self._codec = ServerConnection(services.settings.max_message_size)
        self._transport: asyncio.Transport | None = None
        self._rest: bytes | memoryview = b""
        self._takes_turns = False
        self._may_come_again: asyncio.Future[None] | None = None
        self._patience_s = services.settings.keep_alive_interval_seconds / 2
        self._tasks: set[asyncio.Task[None]] = set()

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
        self.intake = Intake(self._transport, self.services.settings.max_pending_publish_requests_per_connection)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"{host}:{port}"
        self._registry.add(self)
        self._check_limits(host)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.intake.heard_s = self._loop.time()
        self.is_asked = False
        if self._probe is not None:
            self._settle_probe()
        self._rest = data
        self._take()

    def _take(self) -> None:
        """Handle what was read; where that is very many commands, a part of it, and the next part a turn later."""
        data, self._rest = self._rest, b""
        if self._takes_turns:
            whole = memoryview(data)
            data, self._rest = whole[:TURN_BYTES], whole[TURN_BYTES:]
        try:
            events = self._codec.receive_data(data)
        except ProtocolError as error:
            log.warning("Hanging up on %s: %s", self.address, error, extra={"connection": self.address})
            self.close()
            return
        sent = self._handlers.sent
        for event in events:
            if self.is_closed:
                return
            if isinstance(event, Sent):
                sent(self, event)
            else:
                self._handle(event.type, event.body)
        if not self.is_writable and self._unread_bytes > UNREAD_LIMIT_BYTES:
            self.intake.pause(Pause.WRITING)
        self._takes_turns = len(events) > TURN_COMMANDS or len(self._rest) > 0
        if self._takes_turns:
            self.intake.pause(Pause.TURN)
            self._loop.call_soon(self._next_turn)
        else:
            self.intake.resume(Pause.TURN)

    def _next_turn(self) -> None:
        if self.is_closed:
            return
        if self._rest:
            self._take()
        else:
            self.intake.resume(Pause.TURN)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.is_closed = True
        self.is_writable = False
        self._registry.discard(self)
        self._settle_probe()
        self._handlers.closed(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_writable = True
        self.intake.heard_s = self._loop.time()
        self.intake.resume(Pause.WRITING)
        self._handlers.writable_again(self)

    # -- for topics and handlers ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See `Peer`."""
        if not self.is_closed and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """See `Peer`."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Hang up at once, whatever was written."""
        log.info("Hanging up on %s: %s.", self.address, why, extra={"connection": self.address})
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    async def is_alive(self) -> bool:
        """See `Peer`: ask, and wait for any sign of life; of one that is held back only its hanging up is seen."""
        if self.intake.is_held and self.intake.has_hung_up:
            self.abort("it has hung up")
        if self.is_closed or self.intake.is_held:
            return not self.is_closed
        if self._probe is None:
            self._probe = self._loop.create_future()
            self.write(replies.ping())
        try:
            async with asyncio.timeout(LIVENESS_TIMEOUT_S):
                await asyncio.shield(self._probe)
        except TimeoutError:
            self._probe = None
            self.abort("it does not answer, and another client wants what it has")
        return not self.is_closed

    def _settle_probe(self) -> None:
        if self._probe is not None:
            if not self._probe.done():
                self._probe.set_result(None)
            self._probe = None

    def pending_changed(self, entries: int) -> None:
        """See `Peer`."""
        if self.intake.pending_changed(entries):
            self.update_hold()

    def update_hold(self) -> None:
        """Read, or not: a client with producers is held back while nothing is taken from it; others are not."""
        is_shut = not self.services.path.is_open
        publishes = not all(made.is_closed for made in self.producers.values())
        self.intake.hold_producers(publishes=publishes, is_shut=is_shut)
        if self._may_come_again is not None and not (is_shut or self.intake.is_full):
            self._may_come_again.set_result(None)
            self._may_come_again = None

    def while_held(self) -> None:
        """Called now and then while nothing is read: the client must not take that for death, nor wait for long.

        What its consumers say waits behind what its producers send. So these are told to come again after a while, and
        what they send until then is read and passed over.
        """
        if self.intake.has_hung_up:
            self.abort("it has hung up")
            return
        self.write(replies.pong())
        if self.intake.not_taken_s >= self._patience_s:
            self._send_producers_away()

    def _send_producers_away(self) -> None:
        log.warning(
            "Nothing was taken from producers of %s for %.0f s: they are told to come again.",
            self.address,
            self._patience_s,
            extra={"connection": self.address},
        )
        self._may_come_again = self._loop.create_future()
        for made in list(self.producers.values()):
            if not made.is_closed:
                made.is_closed = True
                self.write(replies.close_producer(made.info.producer_id))
                made.topic.forget_producer(made)
        self.update_hold()

    async def room_for_producers(self) -> None:
        """Wait until producers that were sent away may come again; at once where none was.

        Raises:
            ServerRefusalError: that takes long; the client tries again.
        """
        if self._may_come_again is None:
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.shield(self._may_come_again)
        except TimeoutError as error:
            raise ServerRefusalError(
                ServerError.ServiceNotReady, "The broker takes nothing now: see that enough storage paths are writable."
            ) from error

    def hold_for(self, seconds: float) -> None:
        """See `Peer`."""
        self.intake.hold_for(seconds)

    def no_longer_asked(self, place: tuple[int, int], request_id: int) -> bool:
        """The request has come to its end: whether what it asked for is `wanted` still, by a client that is there."""
        if self.wanted.get(place) != request_id:
            return False
        del self.wanted[place]
        return not self.is_closed

    @property
    def _unread_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _check_limits(self, host: str) -> None:
        settings = self.services.settings
        if 0 < settings.broker_max_connections < len(self._registry):
            self._turn_away(f"The broker has {settings.broker_max_connections} connections already, its limit.")
        limit = settings.broker_max_connections_per_ip
        if limit and sum(other.address.rpartition(":")[0] == host for other in self._registry) > limit:
            self._turn_away(f"The broker has {limit} connections from {host} already, its limit.")

    def _turn_away(self, message: str) -> None:
        self.write(replies.error(replies.NO_REQUEST_ID, ServerError.NotAllowedError, message))
        self.close()

    # -- commands ------------------------------------------------------------------------------------------------------

    def _handle(self, type_: int, body: Message | None) -> None:
        if not self._is_its_turn(type_):
            log.warning(
                "Hanging up on %s: it sent command %d %s.",
                self.address,
                type_,
                self._when(),
                extra={"connection": self.address},
            )
            self.close()
        elif (signal := self._handlers.signals.get(type_)) is not None:
            signal(self, body)
        elif (request := self._handlers.requests.get(type_)) is not None:
            self._start(request, body)
        else:
            log.debug(
                "%s sent command %d, which is not known here.", self.address, type_, extra={"connection": self.address}
            )

    def _is_its_turn(self, type_: int) -> bool:
        if self.role is not None:
            return type_ != BaseCommand.CONNECT
        return type_ == (BaseCommand.CONNECT if self.authentication is None else BaseCommand.AUTH_RESPONSE)

    def _when(self) -> str:
        if self.role is not None:
            return "after a first CONNECT"
        return "before its CONNECT" if self.authentication is None else "before it is known"

    def _start(self, request: Request, body: Any) -> None:
        if len(self._tasks) >= MAX_REQUESTS:
            message = f"{MAX_REQUESTS} requests of this connection are not answered yet: ask later."
            self.write(request.refuse(body.request_id, ServerError.TooManyRequests, message))
            return
        self.spawn(self._serve(request, body))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes a while, for this client."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, body: Any) -> None:
        try:
            await request.handle(self, body)
        except PulsarpyError as error:
            log.info("%s is refused: %s", self.address, error, extra={"connection": self.address})
            self.write(request.refuse(body.request_id, code_of(error), str(error)))
        except Exception as error:
            # One request must not take others down; clients retry this error.
            log.exception("A request of %s failed.", self.address, extra={"connection": self.address})
            self.write(request.refuse(body.request_id, ServerError.UnknownError, f"The broker failed: {error!r}."))
