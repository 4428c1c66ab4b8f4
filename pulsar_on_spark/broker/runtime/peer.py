"""What topics see of a client's connection."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from pulsar_on_spark.protocol.commands import ServerError

_END_OF_TOPIC_PROTOCOL: Final = 9
_KNOW_END_OF_TOPIC: Final = ("Pulsar-Java", "Pulsar-Go", "DotPulsar")
"""How clients begin their version that know REACHED_END_OF_TOPIC.

The C++ client, and those of Python and Node.js that are made of it, hang up on it and come back without end. Versions
before 3.0 name no language.
"""

_CPP: Final = "Pulsar-CPP"


class Peer(Hashable, Protocol):
    """A client's connection. Methods belong to the broker's event loop.

    Attributes:
        address: Where the client is, `host:port`.
        client_version: What the client calls itself, such as `Pulsar-CPP-v4.2.0` or `Pulsar-Java-v4.2.4`.
        protocol_version: The lower one of both ends.
        is_closed: Whether it is gone: what is written then goes nowhere.
        is_writable: Whether more may be written now; False while the client is slow to read.
    """

    address: str
    client_version: str
    protocol_version: int
    is_closed: bool
    is_writable: bool

    def write(self, data: bytes) -> None:
        """Send; what one turn of the event loop writes leaves together."""

    async def is_alive(self) -> bool:
        """Whether the client answers; if it does not for 5 s it is hung up on."""

    def pending_changed(self, entries: int) -> None:
        """So many more (or fewer) of its entries wait for their acknowledgement."""

    def hold_for(self, seconds: float) -> None:
        """Read nothing from it for so long: it publishes faster than a topic of its producers allows."""

    def close(self) -> None:
        """Hang up: the client will come back, and send again what was not answered."""


def knows_end_of_topic(peer: Peer) -> bool:
    """Whether a client may be told that a topic has come to its end."""
    return peer.protocol_version >= _END_OF_TOPIC_PROTOCOL and peer.client_version.startswith(_KNOW_END_OF_TOPIC)


def refusal_of_one_entry(peer: Peer) -> ServerError:
    """The error on which a client gives up one entry and goes on with the next.

    The C++ client (and those of Python and Node.js) does so for a bad checksum only: on any other it hangs up, comes
    back and sends the same again, until the entry's time is over.
    """
    is_cpp = peer.client_version.startswith(_CPP)
    return ServerError.ChecksumError if is_cpp else ServerError.NotAllowedError
