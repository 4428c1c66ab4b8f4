"""Handlers of CONNECT, of the authentication that it starts, and of PING and PONG."""

from __future__ import annotations

import logging
import time
from functools import partial
from importlib.metadata import version
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Signal
from pulsar_on_spark.broker.runtime.access import Challenge, Hello, Login
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
from pulsar_on_spark.security.authentication import REFRESH, Claimed, Renewal, next_renewal
from pulsar_on_spark.security.evidence import Failure, NotAuthenticatedError, mark_of
from pulsar_on_spark.security.principal import Principal

log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 21
"""The protocol version of Pulsar 4.2."""
SERVER_VERSION: Final = f"pulsar_on_spark {version('pulsar-on-spark')}"
MAX_LABEL_CHARACTERS: Final = 256
"""Number of characters that are kept of a client's version, and of the name of its authentication method."""
FEATURES: Final = FeatureFlags(
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_topic_watchers=True,
    supports_repl_dedup_by_lid_and_eid=True,
)


def connect(services: Services, connection: Connection, command: CommandConnect) -> None:
    """Handle CONNECT: negotiate the protocol version and begin to authenticate the client."""
    connection.client_version = command.client_version[:MAX_LABEL_CHARACTERS]
    connection.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
    connection.auth_method = command.auth_method_name[:MAX_LABEL_CHARACTERS]
    connection.knows_source_positions = command.feature_flags.supports_repl_dedup_by_lid_and_eid
    is_forwarded = bool(command.original_principal) and not services.settings.authenticate_original_auth_data
    connection.can_renew = command.feature_flags.supports_auth_refresh and not is_forwarded
    claimed = Claimed(command.original_principal, command.original_auth_method, command.original_auth_data.encode())
    hello = Hello(command.auth_method_name, connection.certificate, claimed)
    try:
        connection.login = services.access.login(hello)
    except AccessDeniedError as error:
        connection.check_credentials(_deny(services, connection, command.auth_data, error))
    else:
        connection.check_credentials(_authenticate(services, connection, connection.login, command.auth_data))


def auth_response(services: Services, connection: Connection, command: CommandAuthResponse) -> None:
    """Handle AUTH_RESPONSE: the next step of authentication, or new credentials of an authenticated client."""
    assert connection.login is not None, "CONNECT comes first"
    connection.check_credentials(_authenticate(services, connection, connection.login, command.response.auth_data))


async def _authenticate(services: Services, connection: Connection, login: Login, data: bytes) -> None:
    try:
        outcome = await login.step(data)
        if isinstance(outcome, Challenge):
            _challenge(connection, outcome.data)
        else:
            _admit(services, connection, outcome)
    except AccessDeniedError as error:
        await _deny(services, connection, data, error)
    except Exception:
        log.exception("The authentication of %s failed because of a bug in the broker.", connection.address)
        connection.close()


def _admit(services: Services, connection: Connection, principal: Principal) -> None:
    """Accept a client's credentials. Renewed credentials must have the same roles as the first ones.

    Raises:
        AccessDeniedError: the renewed credentials have other roles.
    """
    known = connection.principal
    if known is not None and not known.is_same_client(principal):
        raise AccessDeniedError(f"it has the role {known.role!r}, and cannot change it to {principal.role!r}")
    connection.principal = principal
    connection.is_challenged = False
    if known is None:
        services.audit.note_login(connection.address, principal)
        connection.handshake_done()
        size = services.settings.max_message_size
        connection.write(replies.connected(SERVER_VERSION, connection.protocol_version, size, FEATURES))


def renew(connection: Connection) -> None:
    """Ask a client whose credentials have expired for new ones.

    A client that cannot send new credentials, or has not sent them since the last call, is disconnected.
    """
    step = next_renewal(
        connection.principal, time.time(), can_renew=connection.can_renew, is_challenged=connection.is_challenged
    )
    if step is Renewal.CHALLENGE:
        connection.is_challenged = True
        _challenge(connection, REFRESH)
    elif step is Renewal.CLOSE:
        log.info(
            "Closing the connection of %s: its credentials are expired.",
            connection.address,
            extra={"connection": connection.address},
        )
        connection.close()


def _challenge(connection: Connection, data: bytes) -> None:
    connection.write(replies.auth_challenge(SERVER_VERSION, connection.protocol_version, connection.auth_method, data))


async def _deny(services: Services, connection: Connection, data: bytes, error: AccessDeniedError) -> None:
    """Refuse a client, after a delay if its host fails often. The reason is only logged: it could help an attacker."""
    reason = str(error).rstrip(".")
    log.warning(
        "The client %s is not authenticated (method %r): %s.",
        connection.address,
        connection.auth_method,
        reason,
        extra={"connection": connection.address},
    )
    method, mark = connection.auth_method, mark_of(connection.auth_method, data)
    services.audit.note_refusal(
        connection.address, connection.principal, "LOGIN", reason=reason, method=method, credential=mark
    )
    is_proxy = isinstance(error, NotAuthenticatedError) and error.failure is Failure.PROXY
    code, message = (
        (ServerError.AuthorizationError, "Invalid roles.")
        if is_proxy
        else (ServerError.AuthenticationError, "Failed to authenticate")
    )
    # A client that renews its credentials has proved its role before: it is not guessing.
    if connection.principal is not None or await services.slow_refusals.turn(connection.address):
        connection.write(replies.error(replies.NO_REQUEST_ID, code, message))
    connection.close()


def closed(services: Services, connection: Connection) -> None:
    """Record in the audit log that the connection of an authenticated client has ended."""
    if connection.principal is not None:
        services.audit.note_logout(connection.address, connection.principal)


def ping(connection: Connection, _: object) -> None:
    """Handle PING: answer PONG."""
    connection.write(replies.pong())


def pong(_: Connection, __: object) -> None:
    """Handle PONG: do nothing, because the connection takes any received data as a sign of life."""


def signals(services: Services) -> dict[int, Signal[Connection]]:
    """Return the handlers of CONNECT, AUTH_RESPONSE, PING and PONG, by type of command."""
    return {
        BaseCommand.CONNECT: partial(connect, services),
        BaseCommand.AUTH_RESPONSE: partial(auth_response, services),
        BaseCommand.PING: ping,
        BaseCommand.PONG: pong,
    }
