"""CONNECT, the exchange that it may begin, PING and PONG."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Signal
from pulsar_on_spark.broker.runtime.access import Challenge
from pulsar_on_spark.model.errors import AccessDeniedError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    FeatureFlags,
    ServerError,
)

PROTOCOL_VERSION: Final = 21
"""Of Pulsar 4.2."""
SERVER_VERSION: Final = f"pulsar_on_spark {version('pulsar-on-spark')}"
MAX_LABEL_LETTERS: Final = 256
"""Limit of a client's name for itself and its authentication method, which are kept as long as the connection."""
FEATURES: Final = FeatureFlags(
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_topic_watchers=True,
    supports_repl_dedup_by_lid_and_eid=True,
)


def connect(connection: Connection, command: CommandConnect) -> None:
    """CONNECT: who is it, and what do both ends understand?"""
    connection.client_version = command.client_version[:MAX_LABEL_LETTERS]
    connection.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
    connection.auth_method = command.auth_method_name[:MAX_LABEL_LETTERS]
    connection.knows_source_positions = command.feature_flags.supports_repl_dedup_by_lid_and_eid
    try:
        connection.authentication = connection.services.access.authentication(command.auth_method_name)
    except AccessDeniedError as error:
        _deny(connection, error)
    else:
        _authenticate(connection, command.auth_data)


def auth_response(connection: Connection, command: CommandAuthResponse) -> None:
    """AUTH_RESPONSE: the next step of who is not known yet, or a new proof of who is."""
    _authenticate(connection, command.response.auth_data)


def _authenticate(connection: Connection, data: bytes) -> None:
    known = connection.role
    assert connection.authentication is not None, "CONNECT comes first"
    try:
        outcome = connection.authentication.step(data)
        if isinstance(outcome, Challenge):
            connection.write(
                replies.auth_challenge(
                    SERVER_VERSION, connection.protocol_version, connection.auth_method, outcome.data
                )
            )
            return
        if known not in (None, outcome):
            raise AccessDeniedError(f"The connection is that of role {known!r} and cannot become that of {outcome!r}.")
    except AccessDeniedError as error:
        _deny(connection, error)
        return
    connection.role = outcome
    if known is None:
        connection.handshake_done()
        size = connection.services.settings.max_message_size
        connection.write(replies.connected(SERVER_VERSION, connection.protocol_version, size, FEATURES))


def _deny(connection: Connection, error: AccessDeniedError) -> None:
    connection.write(replies.error(replies.NO_REQUEST_ID, ServerError.AuthenticationError, str(error)))
    connection.close()


def ping(connection: Connection, _: object) -> None:
    """PING is answered."""
    connection.write(replies.pong())


def pong(_: Connection, __: object) -> None:
    """PONG: that it came is all that it says."""


SIGNALS: Final[dict[int, Signal]] = {
    BaseCommand.CONNECT: connect,
    BaseCommand.AUTH_RESPONSE: auth_response,
    BaseCommand.PING: ping,
    BaseCommand.PONG: pong,
}
