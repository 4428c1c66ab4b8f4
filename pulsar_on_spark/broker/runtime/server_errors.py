"""What clients are told of errors: Pulsar's ServerError for each of ours, and errors that name theirs themselves."""

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

BUG_REASON: Final = "The broker failed at this request by a fault of its own: its log says more."
"""The answer for an unexpected error, whose own text may hold details for operators alone."""


class ServerRefusalError(PulsarpyError):
    """A request is refused with this very error of Pulsar's.

    Args:
        code: The error.
        reason: One sentence.
    """

    def __init__(self, code: ServerError, reason: str) -> None:
        super().__init__(reason)
        self.code = code


_CODES: Final[tuple[tuple[type[PulsarpyError], ServerError], ...]] = (
    (AccessDeniedError, ServerError.AuthorizationError),
    (TopicNotFoundError, ServerError.TopicNotFound),
    (TopicTerminatedError, ServerError.TopicTerminatedError),
    # "Look it up again, and try again": what is in the way passes.
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
"""The first line whose class fits counts. Official clients retry the last two, and ServiceNotReady."""


def code_of(error: Exception) -> ServerError:
    """Pulsar's error for one of ours."""
    if isinstance(error, ServerRefusalError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ServerError.UnknownError)
