"""Refusal of transactions: each request gets an error at once, in the response type that its client waits for."""

from __future__ import annotations

from typing import Any, Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.protocol.transactions import REFUSALS


async def refuse(connection: Connection, command: Any) -> None:
    """Refuse a request of a transaction."""
    raise ServerRefusalError(
        ServerError.NotAllowedError, "Transactions are not supported: create the client without them."
    )


REQUESTS: Final[dict[int, Request[Connection]]] = {
    # Official brokers without transactions answer it with an ERROR.
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: Request(refuse),
    **{type_: Request(refuse, refusal) for type_, refusal in REFUSALS.items()},
}
