"""The types of command handlers, and of the tables in which a connection finds its handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.server import Sent

C = TypeVar("C")
"""The type of the connection."""


class Request(NamedTuple, Generic[C]):
    """The handler of a command that gets an answer.

    Attributes:
        handle: Carries out the command; may raise a `PulsarpyError`.
        refuse: Encodes the answer that reports an error, from the request id, the error code and the message.
    """

    handle: Callable[[C, Any], Awaitable[None]]
    refuse: Callable[[int, ServerError, str], bytes] = replies.error


Steps = Iterator[None]
"""The remaining work of a handler, in steps: the broker serves other clients between two steps."""
Signal = Callable[[C, Any], Steps | None]
"""A handler that acts at once, or returns the steps to take before the client's next command. It must not raise."""


class Handlers(NamedTuple, Generic[C]):
    """The handlers by type of command; a command without a handler is ignored, as in official brokers.

    Attributes:
        requests: Handlers of commands with a request id, by type of command; they run in tasks and answer later.
        signals: Handlers of commands that are handled at once in the order of arrival, by type of command.
        sent: Handles a run of SENDs.
        writable_again: Called when the connection accepts data again.
        closed: Called after the connection has ended.
        renew: Called regularly if authentication is on; asks a client whose credentials have expired for new ones.
    """

    requests: dict[int, Request[C]]
    signals: dict[int, Signal[C]]
    sent: Callable[[C, Sent], None]
    writable_again: Callable[[C], None]
    closed: Callable[[C], None]
    renew: Callable[[C], None]
