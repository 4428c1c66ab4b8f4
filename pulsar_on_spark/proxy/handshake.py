"""The commands that a proxy changes. No IO.

    client ── CONNECT with proxy_to_broker_url ──> proxy ── CONNECT without it ──> that broker
    client <── LOOKUP_RESPONSE with proxy_through_service_url ── proxy <── LOOKUP_RESPONSE ── any broker

A client that gets such an answer connects to the proxy again, and names the topic's broker in CONNECT. Credentials stay
between the client and the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.model.errors import ProtocolError
from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandLookupTopicResponse
from pulsar_on_spark.protocol.frames import FRAME_PADDING_BYTES, MAX_MESSAGE_SIZE_BYTES, FrameSplitter, frame_of
from pulsar_on_spark.protocol.server import MAX_HANDSHAKE_FRAME_BYTES, Command, ServerConnection

MAX_ANSWER_BYTES: Final = MAX_MESSAGE_SIZE_BYTES + FRAME_PADDING_BYTES
"""Limit of a broker's answer on a connection for lookups."""
_SIZE_BYTES: Final = 4
_LOOKUP_RESPONSE: Final = bytes((1 << 3, BaseCommand.LOOKUP_RESPONSE))
"""The first bytes of a LOOKUP_RESPONSE: its type, which all brokers encode first."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The beginning of a client's connection.

    Attributes:
        target: `host:port` of the broker to which the client wants to be connected; "" for any.
        forwarded: The bytes for that broker: CONNECT, and everything that has arrived behind it.
    """

    target: str
    forwarded: bytes


class GreetingReader:
    """Reader of a client's first command."""

    def __init__(self) -> None:
        self._received = bytearray()

    def receive_data(self, data: bytes) -> Greeting | None:
        """Add received bytes; returns the greeting as soon as it is complete.

        Raises:
            ProtocolError: the first command is not CONNECT, or it is larger than 128 KiB.
            TlsHandshakeError: the bytes are a TLS handshake.
        """
        self._received += data
        if len(self._received) < _SIZE_BYTES:
            return None
        end = _SIZE_BYTES + int.from_bytes(self._received[:_SIZE_BYTES], "big")
        decoder = ServerConnection(max_handshake_frame_bytes=MAX_HANDSHAKE_FRAME_BYTES)
        for event in decoder.receive_data(bytes(self._received[:end])):
            if not isinstance(event, Command) or not isinstance(event.body, CommandConnect):
                raise ProtocolError("its first command is not CONNECT")
            target = event.body.proxy_to_broker_url.rpartition("://")[2].rstrip("/")
            event.body.ClearField("proxy_to_broker_url")
            command = BaseCommand(type=BaseCommand.CONNECT, connect=event.body).SerializeToString()
            return Greeting(target, frame_of(command) + bytes(self._received[end:]))
        return None


class LookupAnswers:
    """Changer of a broker's answers to lookups on their way to the client."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(MAX_ANSWER_BYTES, MAX_ANSWER_BYTES)

    def receive_data(self, data: bytes) -> bytes:
        """Add received bytes; return the bytes for the client, of all commands that are complete now.

        Raises:
            ProtocolError: the bytes are not Pulsar's protocol, or a command is larger than `MAX_ANSWER_BYTES`.
        """
        passed_on = bytearray()
        for received, entry in self._splitter.split(memoryview(data)):
            command = _through_proxy(received)
            passed_on += frame_of(command, len(entry)) + entry
        return bytes(passed_on)


def usable_url(plain: str, with_tls: str) -> str:
    """Return the URL by which a proxy connects to a broker: the one without TLS, if there is one."""
    return plain or with_tls


def _through_proxy(command: bytes) -> bytes:
    """Return a broker's command; the answer of a lookup tells the client to reach the broker through the proxy."""
    if not command.startswith(_LOOKUP_RESPONSE):
        return command
    base = BaseCommand.FromString(command)
    answer = base.lookupTopicResponse
    if answer.response != CommandLookupTopicResponse.Connect:
        return command
    # Both fields are set, because a client with TLS reads the second one. The client connects to the proxy anyway.
    url = usable_url(answer.brokerServiceUrl, answer.brokerServiceUrlTls)
    answer.brokerServiceUrl = answer.brokerServiceUrlTls = url
    answer.proxy_through_service_url = True
    return base.SerializeToString()
