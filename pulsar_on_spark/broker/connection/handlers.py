"""The types of command handlers and of the tables that a connection finds them in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.server import Sent

if TYPE_CHECKING:  # avoids a circular import
    from pulsar_on_spark.broker.connection.connection import Connection


class Request(NamedTuple):
    """The handler of a command that is answered.

    Attributes:
        handle: Carries out the command; may raise a `PulsarpyError`.
        refuse: The answer that reports an error: request id, error, message.
    """

    handle: Callable[[Connection, Any], Awaitable[None]]
    refuse: Callable[[int, ServerError, str], bytes] = replies.error


Steps = Iterator[None]
"""The remaining work of a handler, in steps: other clients get a turn between two of them."""
Signal = Callable[["Connection", Any], Steps | None]
"""A handler that acts immediately, or returns the steps to take before the client's next command; must not raise."""


class Handlers(NamedTuple):
    """The handler of each type of command; other types are ignored, as in official brokers.

    Attributes:
        requests: Handlers of commands that are answered later.
        signals: Handlers of commands that are handled at once.
        sent: Handles a SEND.
        writable_again: Called when the connection accepts data again.
        closed: Called after the connection has ended.
    """

    requests: dict[int, Request]
    signals: dict[int, Signal]
    sent: Callable[[Connection, Sent], None]
    writable_again: Callable[[Connection], None]
    closed: Callable[[Connection], None]
