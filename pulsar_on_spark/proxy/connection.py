"""A client's connection through a proxy: two sockets, whose bytes are passed on in both directions.

While one side does not read, the proxy stops reading the other side, so it holds no more bytes than the sockets'
buffers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final, cast

from pulsar_on_spark.model.errors import MetadataError, ProtocolError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.proxy.brokers import BrokerAddress, Brokers
from pulsar_on_spark.proxy.handshake import Greeting, GreetingReader, LookupAnswers

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S: Final = 10.0
"""Seconds in which a client must send its first command."""
CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds in which a broker must accept a connection."""


class Pipe(asyncio.Protocol):
    """One end of a connection, whose received bytes are written to the other end.

    Attributes:
        transport: The transport of this end; None before it is connected.
        other: The other end; None before there is one.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Pipe | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end once it has sent its buffered bytes."""
        if self.other is not None:
            self.other.close()

    def data_received(self, data: bytes) -> None:
        """Write received bytes to the other end."""
        assert self.other is not None, "an end without another one is not read"
        self.other.write(data)

    def pause_writing(self) -> None:
        """Stop reading the other end, because this end's buffer is full."""
        if self.other is not None:
            self.other.read(False)

    def resume_writing(self) -> None:
        """Read the other end again."""
        if self.other is not None:
            self.other.read(True)

    def read(self, wanted: bool) -> None:
        """Begin to read this end if `wanted` is true; otherwise stop reading it."""
        if self.transport is not None and not self.transport.is_closing():
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        """Send bytes from this end; drop them if it is not connected yet."""
        if self.transport is not None and data:
            self.transport.write(data)

    def close(self) -> None:
        """Close this end once its buffered bytes are sent."""
        if self.transport is not None:
            self.transport.close()


class BrokerEnd(Pipe):
    """The end of a connection that is connected to a broker.

    Args:
        client: The end that is connected to the client.
        answers: The rewriter of the broker's answers to lookups; None if the client has named this broker.
    """

    def __init__(self, client: Pipe, answers: LookupAnswers | None) -> None:
        super().__init__()
        self.other = client
        self._answers = answers

    def data_received(self, data: bytes) -> None:
        """Write received bytes to the client, after rewriting the answers to lookups."""
        if self._answers is not None:
            try:
                data = self._answers.receive_data(data)
            except ProtocolError as error:
                log.warning("A broker is disconnected: %s.", error)
                self.close()
                return
        super().data_received(data)


class ClientEnd(Pipe):
    """The end of a connection that is connected to a client; it also finds the broker and connects to it.

    Args:
        brokers: The brokers to which the client may be connected.
        broker_tls: The TLS context for brokers with TLS.
        on_ended: The function to call when the connection has ended.
    """

    def __init__(self, brokers: Brokers, broker_tls: ssl.SSLContext, on_ended: Callable[[ClientEnd], None]) -> None:
        super().__init__()
        self._brokers = brokers
        self._broker_tls = broker_tls
        self._on_ended = on_ended
        self._greeting = GreetingReader()
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's first command, for up to `GREETING_TIMEOUT_S`."""
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the broker's end, cancel what is pending, and call `on_ended`."""
        super().connection_lost(exc)
        for waiting in (self._connecting, self._timer):
            if waiting is not None:
                waiting.cancel()
        self._on_ended(self)

    def data_received(self, data: bytes) -> None:
        """Write received bytes to the broker; until one is connected, read the first command, and connect a broker."""
        if self.other is not None:
            super().data_received(data)
            return
        try:
            greeting = self._greeting.receive_data(data)
        except ProtocolError as error:
            log.warning("The client %s is disconnected: %s.", self._address, error)
            self.close()
            return
        if greeting is not None:
            self.read(False)
            self._connecting = asyncio.get_running_loop().create_task(self._connect(greeting))

    @property
    def _address(self) -> str:
        assert self.transport is not None, "it is connected"
        peer = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "that has left"

    async def _connect(self, greeting: Greeting) -> None:
        try:
            known = await self._brokers.addresses()
        except MetadataError as error:
            log.error("The registrations of brokers cannot be read: %s", error)
            self._refuse("The proxy cannot read the brokers now")
            return
        if greeting.target:
            tried = [broker for broker in known if broker.authority == greeting.target]
            if not tried:
                log.warning(
                    "The client %s asked for %s, which is not a registered broker.", self._address, greeting.target
                )
                self._refuse("The target is not a registered broker")
                return
        else:
            tried = random.sample(known, len(known))
        answers = None if greeting.target else LookupAnswers()
        for broker in tried:
            end = BrokerEnd(self, answers)
            if await self._reaches(broker, end):
                end.write(greeting.forwarded)
                self.other = end
                if self._timer is not None:
                    self._timer.cancel()
                self.read(True)
                return
        self._refuse("The proxy cannot reach a broker" if not greeting.target else "The proxy cannot reach the broker")

    async def _reaches(self, broker: BrokerAddress, end: BrokerEnd) -> bool:
        loop = asyncio.get_running_loop()
        context = self._broker_tls if broker.with_tls else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: end, broker.host, broker.port, ssl=context)
        except (OSError, TimeoutError) as error:
            log.warning("The broker %s cannot be reached: %s", broker.authority, error or "it does not answer")
            return False
        return True

    def _refuse(self, why: str) -> None:
        """Send the client a ServiceNotReady error with the reason and the remedy to try again, and disconnect it."""
        self.write(replies.error(replies.NO_REQUEST_ID, ServerError.ServiceNotReady, f"{why}: try again."))
        self.close()
