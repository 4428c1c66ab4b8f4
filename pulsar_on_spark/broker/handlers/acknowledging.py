"""Handlers of consumers' acknowledgements and redelivery requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Signal, Steps
from pulsar_on_spark.broker.dispatch.values import Ack
from pulsar_on_spark.broker.handlers.consuming import live_consumer, signed
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError, code_of
from pulsar_on_spark.broker.topics.subscribed import Subscribed
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandRedeliverUnacknowledgedMessages,
    MessageIdData,
    ServerError,
)

log = logging.getLogger(__name__)

IDS_AT_ONCE: Final = 1_000
"""Maximum number of message ids that are handled in one step, which takes milliseconds. The broker serves other clients
between two steps."""


def ack(connection: Connection, command: CommandAck) -> Steps | None:
    """Handle ACK: acknowledge before the client's next command; answer, if requested, once the acks are durable.

    An ACK for an unknown consumer is dropped silently, as in official brokers.

    Returns:
        The steps that acknowledge the messages, if there are more than `IDS_AT_ONCE`; else None.
    """
    subscribed = live_consumer(connection, command.consumer_id)
    if subscribed is None:
        return None
    if len(command.message_id) > IDS_AT_ONCE:
        return _ack_in_steps(connection, command, subscribed)
    _answer_ack(connection, command, subscribed, _take_acks(connection, command, subscribed, command.message_id))
    return None


def _ack_in_steps(connection: Connection, command: CommandAck, subscribed: Subscribed) -> Steps:
    problem = None
    for ids in _at_once(command.message_id):
        problem = _take_acks(connection, command, subscribed, ids) or problem
        yield
    _answer_ack(connection, command, subscribed, problem)


def _at_once(ids: Sequence[MessageIdData]) -> Iterator[Sequence[MessageIdData]]:
    return (ids[first : first + IDS_AT_ONCE] for first in range(0, len(ids), IDS_AT_ONCE))


def _take_acks(
    connection: Connection, command: CommandAck, subscribed: Subscribed, ids: Sequence[MessageIdData]
) -> PulsarpyError | None:
    """Acknowledge messages; return the error if some of the acknowledgements are refused, else None."""
    try:
        if command.txnid_most_bits or command.txnid_least_bits:
            raise ServerRefusalError(
                ServerError.NotAllowedError, "Transactions are not supported: acknowledge without a transaction."
            )
        is_cumulative = command.ack_type == CommandAck.Cumulative
        acks = [_ack(id_, subscribed.topic, is_cumulative) for id_ in ids]
        subscribed.subscription.ack(
            subscribed.consumer, [ack_ for ack_ in acks if ack_ is not None], cumulative=is_cumulative
        )
    except PulsarpyError as error:
        log.warning(
            "An acknowledgement of %s is refused: %s",
            connection.address,
            error,
            extra={"connection": connection.address},
        )
        return error
    return None


def _answer_ack(
    connection: Connection, command: CommandAck, subscribed: Subscribed, problem: PulsarpyError | None
) -> None:
    if command.HasField("request_id"):
        connection.requests.spawn(_confirm(connection, command, subscribed, problem))


def _ack(id_: MessageIdData, topic: AnyTopic, is_cumulative: bool) -> Ack | None:
    """Convert a client's message id to an acknowledgement; None if it acknowledges nothing.

    A client that cumulatively acknowledges a part of a ledger's first batch sends the entry before this batch, -1. This
    acknowledges all entries of earlier ledgers.
    """
    ledger, entry = LedgerId(id_.ledgerId), EntryId(signed(id_.entryId))
    if is_cumulative and entry < 0 and isinstance(topic, BrokerTopic):
        before = topic.chain.entry_before(Position(ledger, EntryId(0)))
        return None if before is None else Ack(before.ledger, before.entry)
    return Ack.of(ledger, entry, id_.ack_set, id_.batch_size)


async def _confirm(
    connection: Connection, command: CommandAck, subscribed: Subscribed, problem: PulsarpyError | None
) -> None:
    try:
        if problem is not None:
            raise problem
        await subscribed.subscription.wait_durable()
    except PulsarpyError as error:
        answer = replies.ack_response(command.consumer_id, command.request_id, code_of(error), str(error))
    else:
        answer = replies.ack_response(command.consumer_id, command.request_id)
    connection.write(answer)


def redeliver(connection: Connection, command: CommandRedeliverUnacknowledgedMessages) -> Steps | None:
    """Handle REDELIVER_UNACKNOWLEDGED_MESSAGES: deliver some or all of the consumer's messages again.

    Returns:
        The steps that do this, if the command names more than `IDS_AT_ONCE` messages; else None.
    """
    subscribed = live_consumer(connection, command.consumer_id)
    if subscribed is None:
        return None
    if len(command.message_ids) > IDS_AT_ONCE:
        return _redeliver_in_steps(command, subscribed)
    _redeliver(command, subscribed, command.message_ids)
    return None


def _redeliver_in_steps(command: CommandRedeliverUnacknowledgedMessages, subscribed: Subscribed) -> Steps:
    for ids in _at_once(command.message_ids):
        _redeliver(command, subscribed, ids)
        yield


def _redeliver(
    command: CommandRedeliverUnacknowledgedMessages, subscribed: Subscribed, ids: Sequence[MessageIdData]
) -> None:
    if not subscribed.consumer.is_closed:
        entries = [(LedgerId(id_.ledgerId), EntryId(id_.entryId)) for id_ in ids]
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        subscribed.subscription.redeliver(subscribed.consumer, entries or None, epoch)


SIGNALS: Final[dict[int, Signal[Connection]]] = {
    BaseCommand.ACK: ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver,
}
