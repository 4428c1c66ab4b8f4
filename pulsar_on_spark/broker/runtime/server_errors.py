"""The mapping of errors to Pulsar's ServerError, and an error that carries its code."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.model.errors import (
    AccessDeniedError,
    ConsumerAssignError,
    ConsumerBusyError,
    ConsumerFencedError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    JournalFencedError,
    JournalUnavailableError,
    MetadataError,
    PulsarpyError,
    StorageError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    TopicOwnedElsewhereError,
    TopicTerminatedError,
)
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.security.evidence import NotAuthenticatedError

BUG_REASON: Final = "The request failed because of a bug in the broker: see the broker's log."
"""The reason sent for an unexpected error, whose own text may hold details that clients must not see."""


class ServerRefusalError(PulsarpyError):
    """The refusal of a request with one of Pulsar's error codes.

    Args:
        code: Pulsar's error code.
        reason: The sentence that the client gets.
    """

    def __init__(self, code: ServerError, reason: str) -> None:
        super().__init__(reason)
        self.code = code


_CODES: Final[tuple[tuple[type[PulsarpyError], ServerError], ...]] = (
    (NotAuthenticatedError, ServerError.AuthenticationError),
    (AccessDeniedError, ServerError.AuthorizationError),
    (TopicNotFoundError, ServerError.TopicNotFound),
    (TopicTerminatedError, ServerError.TopicTerminatedError),
    # Clients look the topic up and try again: the obstacle is temporary.
    (TopicOwnedElsewhereError, ServerError.ServiceNotReady),
    (JournalFencedError, ServerError.ServiceNotReady),
    (JournalUnavailableError, ServerError.ServiceNotReady),
    (SubscriptionNotFoundError, ServerError.SubscriptionNotFound),
    (ConsumerBusyError, ServerError.ConsumerBusy),
    (ConsumerFencedError, ServerError.ServiceNotReady),
    (ConsumerAssignError, ServerError.ConsumerAssignError),
    (IncompatibleSchemaError, ServerError.IncompatibleSchema),
    (InvalidArgumentError, ServerError.NotAllowedError),
    (MetadataError, ServerError.MetadataError),
    (StorageError, ServerError.PersistenceError),
)
"""Codes by error class; the first matching line decides. Official clients retry the last two and ServiceNotReady."""


def code_of(error: Exception) -> ServerError:
    """Return Pulsar's code for an error; UnknownError for an error without a code of its own."""
    if isinstance(error, ServerRefusalError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ServerError.UnknownError)
