"""All connections of a broker, with limits on their number and on the bytes that they buffer.

| limit | above it |
|---|---|
| `broker_max_connections`, `broker_max_connections_per_ip` | a new connection gets NotAllowedError |
| slow handshakes: `MAX_SLOW_HANDSHAKES`, `MAX_SLOW_HANDSHAKES_PER_ADDRESS` | the next one gets ServiceNotReady |
| bytes of incomplete frames of all connections | the connections that have been quiet the longest are closed |

Connections of one address are those with the same `source_of` their IP address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from pulsar_on_spark.broker.runtime.intake import Intake
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.security.limits import source_of

SLOW_HANDSHAKE_S: Final = 1.0
"""Time in seconds after which an unfinished handshake counts as slow. Faster handshakes are not limited: a thousand
clients of one host may connect at the same time, for example after a restart of the broker."""
MAX_SLOW_HANDSHAKES: Final = 1_000
MAX_SLOW_HANDSHAKES_PER_ADDRESS: Final = 100


class LimitedConnection(Protocol):
    """The part of a connection that the registry needs to limit its memory and to end it."""

    intake: Intake

    def abort(self, why: str) -> None:
        """Close the connection at once; `why` is the reason for the log, a clause."""


_C = TypeVar("_C", bound=LimitedConnection)
_T = TypeVar("_T")


class Registry(Generic[_C]):
    """The open connections. Call all methods in the broker's event loop.

    Args:
        frames_limit_bytes: Limit of the bytes of incomplete frames of all connections.

    Attributes:
        created: Number of connections that were added since the start.
    """

    def __init__(self, frames_limit_bytes: int) -> None:
        self.created = 0
        self._frames = IncompleteFrames[_C](frames_limit_bytes)
        self._sources: dict[_C, str] = {}
        self._of_source: Counter[str] = Counter()
        self._slow: set[_C] = set()
        self._slow_of_source: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[_C]:
        return iter(list(self._sources))

    def add(self, connection: _C, host: str, settings: BrokerSettings) -> None:
        """Add a new connection. Even if this raises, the connection counts until `remove`.

        Args:
            connection: The connection.
            host: The client's IP address.
            settings: The settings in force, which have the limits.

        Raises:
            ServerRefusalError: there are too many connections.
        """
        source = source_of(host)
        self.created += 1
        self._sources[connection] = source
        self._of_source[source] += 1
        limit = settings.broker_max_connections
        if 0 < limit < len(self._sources):
            raise _refused(
                f"The broker has {limit} connections, its limit (broker_max_connections): close one or raise the limit."
            )
        limit = settings.broker_max_connections_per_ip
        if 0 < limit < self._of_source[source]:
            raise _refused(
                f"{source} has {limit} connections, its limit (broker_max_connections_per_ip): close one or raise the "
                "limit."
            )

    def add_slow_handshake(self, connection: _C) -> None:
        """Count a slow handshake until the client is CONNECTED or its connection has ended.

        Raises:
            ServerRefusalError: there are too many slow handshakes.
        """
        source = self._sources[connection]
        self._slow.add(connection)
        self._slow_of_source[source] += 1
        if len(self._slow) > MAX_SLOW_HANDSHAKES:
            raise _busy(f"{MAX_SLOW_HANDSHAKES} clients of the broker are being connected: try again.")
        if self._slow_of_source[source] > MAX_SLOW_HANDSHAKES_PER_ADDRESS:
            raise _busy(f"{MAX_SLOW_HANDSHAKES_PER_ADDRESS} clients from {source} are being connected: try again.")

    def note_incomplete_frame(self, connection: _C, size_bytes: int) -> None:
        """Record that a connection has sent data, and holds `size_bytes` of an incomplete frame now.

        Above the limit of all connections, close those that have been quiet the longest.
        """
        self._frames.note(connection, size_bytes)
        if self._frames.is_over:
            for quietest in self._frames.surplus(lambda other: other.intake.is_held):
                quietest.abort(
                    "incomplete frames of all clients fill the memory, and this client has been quiet the longest"
                )

    def handshake_done(self, connection: _C) -> None:
        """Stop counting a connection's handshake: the client is CONNECTED, or its connection has ended."""
        if connection in self._slow:
            self._slow.discard(connection)
            _count_down(self._slow_of_source, self._sources[connection])

    def remove(self, connection: _C) -> None:
        """Stop counting a connection that has ended."""
        self.handshake_done(connection)
        self._frames.note(connection, 0)
        source = self._sources.pop(connection, None)
        if source is not None:
            _count_down(self._of_source, source)


class IncompleteFrames(Generic[_T]):
    """The bytes of incomplete frames that all connections hold.

    Args:
        limit_bytes: Limit of the bytes of all connections together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[_T, int] = {}
        """Bytes by connection, in the order of their last data: the quietest first."""
        self._total = 0

    @property
    def is_over(self) -> bool:
        """True if the connections hold more than the limit."""
        return self._total > self._limit_bytes

    def note(self, connection: _T, size_bytes: int) -> None:
        """Record that a connection has sent data, and holds `size_bytes` of an incomplete frame now."""
        self._total += size_bytes - self._held.pop(connection, 0)
        if size_bytes:
            self._held[connection] = size_bytes

    def surplus(self, is_waiting: Callable[[_T], bool]) -> list[_T]:
        """Stop counting the quietest connections until the others are within the limit; return those to close.

        Args:
            is_waiting: Returns True if the broker itself has paused reading from a connection. Such a connection is not
                returned, and counts again when it sends data.
        """
        to_close: list[_T] = []
        while self.is_over:
            quietest = next(iter(self._held))
            self._total -= self._held.pop(quietest)
            if not is_waiting(quietest):
                to_close.append(quietest)
        return to_close


def _count_down(counter: Counter[str], source: str) -> None:
    counter[source] -= 1
    if not counter[source]:
        del counter[source]


def _refused(message: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.NotAllowedError, message)


def _busy(message: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.ServiceNotReady, message)
