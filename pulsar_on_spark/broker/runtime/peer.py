"""A client's connection as topics see it, and the differences between client versions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.security.principal import Principal

_END_OF_TOPIC_PROTOCOL: Final = 9
_KNOW_END_OF_TOPIC: Final = ("Pulsar-Java", "Pulsar-Go", "DotPulsar")
"""Prefixes of the versions of clients that handle REACHED_END_OF_TOPIC.

The C++ client, and the Python and Node.js clients built on it, disconnect on that command and reconnect forever.
Versions before 3.0 do not include the language.
"""

_CPP: Final = "Pulsar-CPP"


class Peer(Hashable, Protocol):
    """A client's connection. Call all methods in the broker's event loop.

    Attributes:
        address: The client's address, `host:port`.
        client_version: The client's name and version, such as `Pulsar-CPP-v4.2.0` or `Pulsar-Java-v4.2.4`.
        protocol_version: The lower of the client's and the broker's protocol versions.
        principal: The client's identity; None before it is authenticated, when it has no producers, consumers or
            watchers yet.
        is_closed: True if the connection has ended: written data is dropped.
        is_writable: False while too much data waits to be sent, because the client reads slowly.
    """

    address: str
    client_version: str
    protocol_version: int
    principal: Principal | None
    is_closed: bool
    is_writable: bool

    def write(self, data: bytes) -> None:
        """Send data; all data written in one turn of the event loop is sent together."""

    async def is_alive(self) -> bool:
        """Ping the client, and return True if it responds within 5 s; else close the connection and return False."""

    def pending_changed(self, entries: int) -> None:
        """Change the number of the client's unacknowledged entries by `entries`."""

    def hold_for(self, seconds: float) -> None:
        """Pause reading for some seconds: the client exceeds the publish rate of a topic or of the broker."""

    def close(self) -> None:
        """Close the connection: the client reconnects and resends unacknowledged entries."""


def knows_end_of_topic(peer: Peer) -> bool:
    """Return True if a client handles REACHED_END_OF_TOPIC."""
    return peer.protocol_version >= _END_OF_TOPIC_PROTOCOL and peer.client_version.startswith(_KNOW_END_OF_TOPIC)


def refusal_of_one_entry(peer: Peer) -> ServerError:
    """Return the error on which a client fails one entry and continues with the next.

    The C++ client (and so the Python and Node.js clients) does that only for a bad checksum. On other errors it
    reconnects and resends the entry until the entry's send timeout.
    """
    is_cpp = peer.client_version.startswith(_CPP)
    return ServerError.ChecksumError if is_cpp else ServerError.NotAllowedError
