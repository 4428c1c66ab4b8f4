"""A client's connection: parse bytes, dispatch commands to handlers, write responses, apply back-pressure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final, cast

from google.protobuf.message import Message

from pulsar_on_spark.broker.connection.broker_state import BrokerState
from pulsar_on_spark.broker.connection.handlers import Handlers, Request, Steps
from pulsar_on_spark.broker.connection.large_answers import LargeAnswers
from pulsar_on_spark.broker.connection.registry import SLOW_HANDSHAKE_S, Registry
from pulsar_on_spark.broker.connection.requests import Requests
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.runtime.access import Login
from pulsar_on_spark.broker.runtime.intake import Intake, Pause
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.topics.creation_rate import CreationRate
from pulsar_on_spark.broker.topics.subscribed import Subscribed
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.model.errors import ProtocolError, TlsHandshakeError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.protocol.server import Event, Sent, ServerConnection
from pulsar_on_spark.security.evidence import Certificate
from pulsar_on_spark.security.principal import Principal

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES: Final = 1 << 20
"""Bytes that a client may leave unread before deliveries to it pause."""
UNREAD_LIMIT_BYTES: Final = 16 << 20
"""Bytes that a client may leave unread before the broker also stops reading from it.

The limit is far above the size of deliveries and of answers to outstanding requests. A client that sends and receives
on one connection may stop reading while it waits to send (Go's does): if the broker then stopped reading too, both
would wait forever. Pulsar never stops reading for this reason."""
LIVENESS_TIMEOUT_S: Final = 5.0
"""Time in which a client must respond when another client wants to take over its consumer or producer
(`connectionLivenessCheckTimeoutMillis`)."""
TURN_COMMANDS: Final = 1_000
"""Number of commands in one read above which the client takes turns with other clients in the event loop."""
TURN_BYTES: Final = 32 << 10
"""Bytes that are handled in one turn of a client that takes turns. A read of at least this size that does not end with
a SEND also makes the client take turns, because a few large commands may name thousands of messages each. (uvloop reads
up to 32 times 256 KiB in a row.)"""


class Connection(asyncio.Protocol):
    """A client's connection; topics see it as a `Peer`.

    Args:
        broker: The state of the broker.
        handlers: The handlers of commands.
        registry: All open connections.

    Attributes:
        principal: The client's identity; None until it is authenticated.
        login: The state of the client's authentication; None before CONNECT.
        auth_method: The name of the authentication method, as sent by the client.
        can_renew: True if the client can send new credentials on this connection.
        is_challenged: True if the client was asked for new credentials and has not sent them yet.
        knows_source_positions: True if the client's replicators understand receipts that contain source positions.
        producers: The client's producers, by producer id.
        unadmitted: The topic and options of each producer that waits for exclusive access, by producer id.
        consumers: The client's consumers with their subscriptions, by consumer id, including consumers that the broker
            has disconnected.
        opening: Running SUBSCRIBE and PRODUCER requests that the client has not cancelled: (type of the command, id of
            the consumer or producer) -> request id.
        is_pinged: True if a PING was sent and no data has arrived since.
        creations: The rate at which the client may create topics and subscriptions.
        requests: The client's requests that are not answered yet.
        large_answers: Limits the client's large answers to one at a time.
    """

    def __init__(self, broker: BrokerState, handlers: Handlers[Connection], registry: Registry[Connection]) -> None:
        self._broker = broker
        settings = broker.current_settings()
        self.address = ""
        self.client_version = ""
        self.protocol_version = 0
        self.principal: Principal | None = None
        self.login: Login | None = None
        self.auth_method = ""
        self.can_renew = False
        self.is_challenged = False
        self.knows_source_positions = False
        self.is_closed = False
        self.is_writable = True
        self.producers: dict[int, Producer] = {}
        self.unadmitted: dict[int, tuple[AnyTopic, ProducerInfo]] = {}
        self.consumers: dict[int, Subscribed] = {}
        self.opening: dict[tuple[int, int], int] = {}
        self.is_pinged = False
        self.creations = CreationRate()
        self.requests = Requests()
        self.large_answers = LargeAnswers(lambda: self.is_closed or self._unread_bytes <= UNREAD_LIMIT_BYTES)
        self._probe: asyncio.Future[None] | None = None
        self._handlers = handlers
        self._registry = registry
        self._codec = ServerConnection(
            settings.max_message_size,
            max_handshake_frame_bytes=settings.connection_handshake_max_frame_bytes,
        )
        self._holds = False
        """True if the codec holds bytes of an incomplete frame."""
        self._transport: asyncio.Transport | None = None
        self._rest: bytes | memoryview = b""
        self._left: Iterator[Event] = iter(())
        self._steps: Steps | None = None
        self._takes_turns = False
        self._waits = False
        """True while the client's credentials are checked: its next commands wait."""
        self._producer_room: asyncio.Future[None] | None = None
        self._handshake_timeout_s = settings.connection_handshake_timeout_seconds
        self._patience_s = settings.keep_alive_interval_seconds / 2

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start the handshake's timeout; refuse a connection above the limits."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)
        settings = self._broker.current_settings()
        self.intake = Intake(self._transport, settings.max_pending_publish_requests_per_connection)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"{host}:{port}"
        self._handshake = self._loop.call_later(min(SLOW_HANDSHAKE_S, self._handshake_timeout_s), self._handshake_slow)
        try:
            self._registry.add(self, host, settings)
        except ServerRefusalError as error:
            self._refuse(error)

    def data_received(self, data: bytes) -> None:
        """Handle the received commands, and note that the client is alive."""
        self.intake.heard_s = self._loop.time()
        self.is_pinged = False
        if self._probe is not None:
            self._settle_probe()
        self._rest = data
        self._handle_received()

    def _handle_received(self) -> None:
        """Handle the received data. If the client takes turns, handle `TURN_BYTES` now and the rest in later turns."""
        data, self._rest = self._rest, b""
        if self._takes_turns:
            whole = memoryview(data)
            data, self._rest = whole[:TURN_BYTES], whole[TURN_BYTES:]
        try:
            events = self._codec.receive_data(bytes(data))
        except ProtocolError as error:
            remedy = f", and {self._broker.use_tls_port}" if isinstance(error, TlsHandshakeError) else ""
            log.warning(
                "Closing the connection of %s: %s%s", self.address, error, remedy, extra={"connection": self.address}
            )
            self.close()
            return
        held_bytes = self._codec.held_bytes + len(self._rest)
        if held_bytes or self._holds:
            self._holds = held_bytes > 0
            self._registry.note_incomplete_frame(self, held_bytes)
        self._left = iter(events)
        self._handle_left()
        if not self.is_writable and self._unread_bytes > UNREAD_LIMIT_BYTES:
            self.intake.pause(Pause.WRITING)
        is_large = len(data) >= TURN_BYTES and bool(events) and not isinstance(events[-1], Sent)
        commands = sum(len(event.entries) if isinstance(event, Sent) else 1 for event in events)
        self._takes_turns = commands > TURN_COMMANDS or is_large or len(self._rest) > 0
        if self._waits:
            return  # `_wait` continues
        if self._takes_turns or self._steps is not None:
            self.intake.pause(Pause.TURN)
            self._loop.call_soon(self._next_turn)
        else:
            self.intake.resume(Pause.TURN)

    def _handle_left(self) -> None:
        """Handle the remaining commands of the last read, up to the first command that is carried out in steps."""
        sent = self._handlers.sent
        for event in self._left:
            if self.is_closed:
                return
            if isinstance(event, Sent):
                sent(self, event)
            elif (steps := self._handle(event.type, event.body)) is not None:
                self._steps = steps
                return
            if self._waits:
                return

    def check_credentials(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a check of the client's credentials; the client's next commands wait until it ends.

        Args:
            work: The check; it must not raise.
        """
        self._waits = True
        self.intake.pause(Pause.AUTHENTICATION)
        self.requests.spawn(self._wait(work))

    async def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._waits = False
        self._handle_left()
        if self.is_closed or self._waits:
            return
        self.intake.pause(Pause.TURN)
        self.intake.resume(Pause.AUTHENTICATION)
        self._next_turn()

    @property
    def certificate(self) -> Certificate | None:
        """The client's certificate, which TLS has verified; None if the client presented none."""
        return None if self._transport is None else self._transport.get_extra_info("peercert") or None

    def _refuse(self, error: ServerRefusalError) -> None:
        self.write(replies.error(replies.NO_REQUEST_ID, error.code, str(error)))
        self.close()

    def _handshake_slow(self) -> None:
        left_s = max(0.0, self._handshake_timeout_s - SLOW_HANDSHAKE_S)
        self._handshake = self._loop.call_later(left_s, self._handshake_late)
        try:
            self._registry.add_slow_handshake(self)
        except ServerRefusalError as error:
            self._refuse(error)

    def _handshake_late(self) -> None:
        self.abort(f"its handshake took longer than {self._handshake_timeout_s:g} s")

    def handshake_done(self) -> None:
        """Lift the limits on unfinished handshakes, because the client is CONNECTED."""
        self._codec.handshake_done()
        self._registry.handshake_done(self)
        self._handshake.cancel()

    def _next_turn(self) -> None:
        if self.is_closed:
            return
        if self._take_step():
            self._loop.call_soon(self._next_turn)
        elif self._rest:
            self._handle_received()
        else:
            self.intake.resume(Pause.TURN)

    def _take_step(self) -> bool:
        """Take the next step of the running command, if any; after its last step, handle the client's next commands.

        Returns:
            True if a command has another step to take.
        """
        if self._steps is None:
            return False
        for _ in self._steps:
            return True
        self._steps = None
        self._handle_left()
        return self._steps is not None

    def connection_lost(self, error: Exception | None) -> None:
        """Unregister the connection and remove its producers, consumers and watchers; `error` is not used."""
        self.is_closed = True
        self.is_writable = False
        self._registry.remove(self)
        self.large_answers.room_changed()
        self._handshake.cancel()
        self._settle_probe()
        self._handlers.closed(self)

    def pause_writing(self) -> None:
        """Pause deliveries, because the client has left more than `WRITE_HIGH_WATER_BYTES` unread."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Resume deliveries and reading, because the client has read enough."""
        self.is_writable = True
        self.large_answers.room_changed()
        self.intake.heard_s = self._loop.time()
        self.intake.resume(Pause.WRITING)
        self._handlers.writable_again(self)

    # -- for topics and handlers ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send data to the client; drop it if the connection has ended."""
        if not self.is_closed and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after the written data is sent."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once and drop unsent data; `why` is the reason for the log, a clause."""
        log.info("Closing the connection of %s: %s.", self.address, why, extra={"connection": self.address})
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    async def is_alive(self) -> bool:
        """Ping the client and return True if data arrives within `LIVENESS_TIMEOUT_S`; else abort the connection.

        A connection from which reading is paused is not pinged: it is alive unless the client has closed it.
        """
        if self.intake.is_held and self.intake.has_hung_up:
            self.abort("the client has hung up")
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
            self.abort("it does not respond, and another client wants to take over its consumer or producer")
        return not self.is_closed

    def _settle_probe(self) -> None:
        if self._probe is not None:
            if not self._probe.done():
                self._probe.set_result(None)
            self._probe = None

    def pending_changed(self, entries: int) -> None:
        """Change the number of the client's in-flight entries by `entries`; pause or resume reading at the limits."""
        if self.intake.pending_changed(entries):
            self.update_hold()

    def update_hold(self) -> None:
        """Pause or resume reading from a client with producers.

        Reading pauses while the broker accepts no entries, and while too many of the client's entries are in flight.
        """
        is_shut = not self._broker.accepts_entries()
        publishes = not all(producer.is_closed for producer in self.producers.values())
        self.intake.hold_producers(publishes=publishes, is_shut=is_shut)
        if self._producer_room is not None and not (is_shut or self.intake.is_full):
            self._producer_room.set_result(None)
            self._producer_room = None

    def keep_alive_while_held(self) -> None:
        """Keep a connection alive while reading is paused: send PONG, and disconnect producers blocked for too long.

        Call this periodically while reading is paused. After half a keep-alive interval in which no entry is accepted,
        the producers are disconnected, because the commands of the client's consumers wait behind the producers'
        messages. The unread messages are dropped; the producers send them again after they reconnect.
        """
        if self.intake.has_hung_up:
            self.abort("the client has hung up")
            return
        self.write(replies.pong())
        if self.intake.not_taken_s >= self._patience_s:
            self._disconnect_producers()

    def _disconnect_producers(self) -> None:
        log.warning(
            "Producers of %s were blocked for %.0f s: they are disconnected and will reconnect.",
            self.address,
            self._patience_s,
            extra={"connection": self.address},
        )
        self._producer_room = self._loop.create_future()
        for producer in list(self.producers.values()):
            if not producer.is_closed:
                producer.disconnect()
        self.update_hold()

    async def wait_for_producer_room(self) -> None:
        """Wait until the producers that the broker disconnected may reconnect; return at once if there are none.

        Raises:
            ServerRefusalError: the broker accepted no entries for half a keep-alive interval; the client tries again.
        """
        if self._producer_room is None:
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.shield(self._producer_room)
        except TimeoutError as error:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                "The broker is not accepting messages: check that enough storage paths are writable.",
            ) from error

    def hold_for(self, seconds: float) -> None:
        """Pause reading for some seconds, because the client exceeds a publish rate."""
        self.intake.hold_for(seconds)

    def end_opening(self, key: tuple[int, int], request_id: int) -> bool:
        """Remove a request from `opening`; return True if the client is connected and has not cancelled the request.

        Args:
            key: The type of the command, and the id of the consumer or producer.
            request_id: The id of the request.
        """
        if self.opening.get(key) != request_id:
            return False
        del self.opening[key]
        return not self.is_closed

    @property
    def _unread_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- commands ------------------------------------------------------------------------------------------------------

    def _handle(self, type_: int, body: Message | None) -> Steps | None:
        if not self._is_expected(type_):
            log.warning(
                "Closing the connection of %s: it sent command %d %s.",
                self.address,
                type_,
                self._when(),
                extra={"connection": self.address},
            )
            self.close()
        elif (signal := self._handlers.signals.get(type_)) is not None:
            return signal(self, body)
        elif (request := self._handlers.requests.get(type_)) is not None:
            self._start(request, body)
        else:
            log.debug(
                "%s sent command %d, which has no handler.", self.address, type_, extra={"connection": self.address}
            )
        return None

    def _is_expected(self, type_: int) -> bool:
        if self.principal is not None:
            return type_ != BaseCommand.CONNECT
        return type_ == (BaseCommand.CONNECT if self.login is None else BaseCommand.AUTH_RESPONSE)

    def _when(self) -> str:
        if self.principal is not None:
            return "after a first CONNECT"
        return "before its CONNECT" if self.login is None else "before it is authenticated"

    def _start(self, request: Request[Connection], body: Any) -> None:
        def refuse(code: ServerError, message: str) -> None:
            self.write(request.refuse(body.request_id, code, message))

        self.requests.start(self.address, partial(request.handle, self, body), refuse)
