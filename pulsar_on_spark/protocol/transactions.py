"""Encoders of refusals of transaction requests. Clients expect a different response type for each request type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxnResponse,
    CommandEndTxnResponse,
    CommandNewTxnResponse,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of


def _refusal(type_: int, request_id: int, error: ServerError, message: str) -> bytes:
    base = BaseCommand(type=type_)
    match type_:
        case BaseCommand.NEW_TXN_RESPONSE:
            base.newTxnResponse.CopyFrom(CommandNewTxnResponse(request_id=request_id, error=error, message=message))
        case BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE:
            base.addPartitionToTxnResponse.CopyFrom(
                CommandAddPartitionToTxnResponse(request_id=request_id, error=error, message=message)
            )
        case BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE:
            base.addSubscriptionToTxnResponse.CopyFrom(
                CommandAddSubscriptionToTxnResponse(request_id=request_id, error=error, message=message)
            )
        case BaseCommand.END_TXN_RESPONSE:
            base.endTxnResponse.CopyFrom(CommandEndTxnResponse(request_id=request_id, error=error, message=message))
    return frame_of(base.SerializeToString())


REFUSALS: Final[dict[int, Callable[[int, ServerError, str], bytes]]] = {
    BaseCommand.NEW_TXN: partial(_refusal, BaseCommand.NEW_TXN_RESPONSE),
    BaseCommand.ADD_PARTITION_TO_TXN: partial(_refusal, BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE),
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: partial(_refusal, BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE),
    BaseCommand.END_TXN: partial(_refusal, BaseCommand.END_TXN_RESPONSE),
}
"""The function that encodes the refusal of a request from request id, error and message, by the request's type."""
