"""The commands that a proxy changes. No IO.

    client ── CONNECT with proxy_to_broker_url ──> proxy ── CONNECT without it ──> that broker
    client <── LOOKUP_RESPONSE with proxy_through_service_url ── proxy <── LOOKUP_RESPONSE ── any broker

A client that gets an answer with `proxy_through_service_url` connects to the proxy again, and names the topic's broker
in CONNECT. The proxy does not check credentials; the broker does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.model.errors import ProtocolError
from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandLookupTopicResponse
from pulsar_on_spark.protocol.frames import FRAME_PADDING_BYTES, MAX_MESSAGE_SIZE_BYTES, FrameSplitter, frame_of
from pulsar_on_spark.protocol.server import MAX_HANDSHAKE_FRAME_BYTES, Command, ServerConnection

MAX_ANSWER_BYTES: Final = MAX_MESSAGE_SIZE_BYTES + FRAME_PADDING_BYTES
"""Maximum bytes of a broker's answer on a connection for lookups."""
_SIZE_BYTES: Final = 4
_LOOKUP_RESPONSE: Final = bytes((1 << 3, BaseCommand.LOOKUP_RESPONSE))
"""The first bytes of a LOOKUP_RESPONSE: the field with the command's type, which all brokers encode first."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The beginning of a client's connection.

    Attributes:
        target: `host:port` of the broker to which the client wants to be connected; "" for any broker.
        forwarded: The bytes for the broker: CONNECT, and all bytes that have arrived after it.
    """

    target: str
    forwarded: bytes


class GreetingReader:
    """Reader of a client's first command."""

    def __init__(self) -> None:
        self._received = bytearray()

    def receive_data(self, data: bytes) -> Greeting | None:
        """Add received bytes; return the greeting if it is complete now, else None.

        Raises:
            ProtocolError: the first command is not CONNECT, or is larger than 128 KiB.
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
    """Rewriter of a broker's answers to lookups, which tell the client to reach the broker through the proxy."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(MAX_ANSWER_BYTES, MAX_ANSWER_BYTES)

    def receive_data(self, data: bytes) -> bytes:
        """Add bytes received from the broker; return the bytes for the client: all commands that are complete now.

        Raises:
            ProtocolError: the bytes are not Pulsar's protocol, or a command is larger than `MAX_ANSWER_BYTES`.
        """
        passed_on = bytearray()
        for received, entry in self._splitter.split(data):
            command = _through_proxy(received)
            passed_on += frame_of(command, len(entry)) + entry
        return bytes(passed_on)


def usable_url(plain: str, with_tls: str) -> str:
    """Return the URL by which a proxy connects to a broker: the URL without TLS or, if this is "", the URL with TLS."""
    return plain or with_tls


def _through_proxy(command: bytes) -> bytes:
    """Return a broker's command for the client; in an answer to a lookup, set `proxy_through_service_url`."""
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
