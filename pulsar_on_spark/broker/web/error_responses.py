"""Responses to refused requests, in the form that Pulsar's clients read: a status, and `{"reason": ...}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.model.errors import (
    AccessDeniedError,
    ConsumerBusyError,
    ConsumerFencedError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    MetadataError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    PulsarpyError,
    SchemaNotFoundError,
    StorageError,
    SubscriptionNotFoundError,
    TopicBusyError,
    TopicExistsError,
    TopicNotFoundError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.security.evidence import NotAuthenticatedError
from pulsar_on_spark.security.rules import NotAuthorizedError

_STATUS: Final[tuple[tuple[type[PulsarpyError], int], ...]] = (
    (NotAuthenticatedError, 401),
    (AccessDeniedError, 403),
    (TopicNotFoundError, 404),
    (NamespaceNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (SchemaNotFoundError, 404),
    (TopicExistsError, 409),
    (NamespaceExistsError, 409),
    (ConsumerBusyError, 412),
    (TopicBusyError, 412),
    (TopicTerminatedError, 412),
    (IncompatibleSchemaError, 409),
    (InvalidArgumentError, 412),
    (TopicOwnedElsewhereError, 503),
    (ConsumerFencedError, 503),
    (MetadataError, 503),
    (StorageError, 503),
)
"""HTTP status by error class; the first matching line decides, and other errors are 500."""
_STATUS_OF_CODE: Final = {
    ServerError.AuthorizationError: 403,
    ServerError.TopicNotFound: 404,
    ServerError.InvalidTopicName: 412,
    ServerError.NotAllowedError: 405,
    ServerError.ServiceNotReady: 503,
    ServerError.SubscriptionNotFound: 404,
    ServerError.ConsumerBusy: 412,
    ServerError.MetadataError: 412,
}


def status_of(error: PulsarpyError) -> int:
    """Return the HTTP status for an error; 500 for an error without a status of its own."""
    if isinstance(error, NotAuthorizedError):
        return error.status
    if isinstance(error, ServerRefusalError):
        return _STATUS_OF_CODE.get(error.code, 500)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def refusal(error: PulsarpyError) -> JSONResponse:
    """Return the response to a request that failed with an error: its status, and its text as the reason."""
    return reason_response(status_of(error), error.as_pulsar or str(error))


def reason_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a response with a status, the body `{"reason": reason}`, and additional headers; None for none."""
    return JSONResponse({"reason": reason}, status, headers)
