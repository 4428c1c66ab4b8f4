"""Handlers of CONNECT, of the authentication that it starts, and of PING and PONG."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Signal
from pulsar_on_spark.broker.runtime.access import Challenge
from pulsar_on_spark.broker.services.services import Services
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
"""The protocol version of Pulsar 4.2."""
SERVER_VERSION: Final = f"pulsar_on_spark {version('pulsar-on-spark')}"
MAX_LABEL_LETTERS: Final = 256
"""Limit of a client's version and of its authentication method's name, which are stored with the connection."""
FEATURES: Final = FeatureFlags(
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_topic_watchers=True,
    supports_repl_dedup_by_lid_and_eid=True,
)


def connect(services: Services, connection: Connection, command: CommandConnect) -> None:
    """Handle CONNECT: negotiate the protocol version and begin to authenticate the client."""
    connection.client_version = command.client_version[:MAX_LABEL_LETTERS]
    connection.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
    connection.auth_method = command.auth_method_name[:MAX_LABEL_LETTERS]
    connection.knows_source_positions = command.feature_flags.supports_repl_dedup_by_lid_and_eid
    try:
        connection.authentication = services.access.authentication(command.auth_method_name)
    except AccessDeniedError as error:
        _deny(connection, error)
    else:
        _authenticate(services, connection, command.auth_data)


def auth_response(services: Services, connection: Connection, command: CommandAuthResponse) -> None:
    """Handle AUTH_RESPONSE: the next step of authentication, or new credentials of an authenticated client."""
    _authenticate(services, connection, command.response.auth_data)


def _authenticate(services: Services, connection: Connection, data: bytes) -> None:
    known = connection.principal
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
        if known is not None and known != outcome:
            raise AccessDeniedError(
                f"The connection has role {known.role!r} and cannot change to role {outcome.role!r}: connect again."
            )
    except AccessDeniedError as error:
        _deny(connection, error)
        return
    connection.principal = outcome
    if known is None:
        connection.handshake_done()
        size = services.settings.max_message_size
        connection.write(replies.connected(SERVER_VERSION, connection.protocol_version, size, FEATURES))


def _deny(connection: Connection, error: AccessDeniedError) -> None:
    connection.write(replies.error(replies.NO_REQUEST_ID, ServerError.AuthenticationError, str(error)))
    connection.close()


def ping(connection: Connection, _: object) -> None:
    """Handle PING: answer PONG."""
    connection.write(replies.pong())


def pong(_: Connection, __: object) -> None:
    """Handle PONG: any received data counts as a sign of life, so nothing is left to do."""


def signals(services: Services) -> dict[int, Signal[Connection]]:
    """Return the handlers of CONNECT, AUTH_RESPONSE, PING and PONG."""
    return {
        BaseCommand.CONNECT: partial(connect, services),
        BaseCommand.AUTH_RESPONSE: partial(auth_response, services),
        BaseCommand.PING: ping,
        BaseCommand.PONG: pong,
    }
