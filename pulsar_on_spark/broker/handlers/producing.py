"""Producers and what they send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from pulsar_on_spark.broker.connection.access import Operation
from pulsar_on_spark.broker.connection.connection import Connection, Request
from pulsar_on_spark.broker.connection.peer import Peer
from pulsar_on_spark.broker.handlers.lookup import authorize, topic_name
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.producing.producers import AccessMode, ProducerInfo
from pulsar_on_spark.broker.producing.topic_producers import ProducerRefusedError
from pulsar_on_spark.broker.server_errors import ServerRefusalError
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, CommandCloseProducer, CommandProducer, ServerError
from pulsar_on_spark.protocol.server import Sent

log = logging.getLogger(__name__)


async def producer(connection: Connection, command: CommandProducer) -> None:
    """PRODUCER: admit it, after a while if it waits to be the exclusive one."""
    place = (BaseCommand.PRODUCER, command.producer_id)
    connection.wanted[place] = command.request_id
    try:
        topic, info, answer, made = await _producer(connection, command)
    finally:
        is_wanted = connection.no_longer_asked(place, command.request_id)
    if not is_wanted:
        topic.producers.remove(info)
        return
    if made.is_closed:
        raise ServerRefusalError(
            ServerError.ServiceNotReady, f"Topic {topic.name} was unloaded here meanwhile: look it up again."
        )
    connection.producers[command.producer_id] = made
    connection.update_hold()
    connection.write(answer)


async def _producer(connection: Connection, command: CommandProducer) -> tuple[AnyTopic, ProducerInfo, bytes, Producer]:
    """Admit a producer; returns what its client is told."""
    services = connection.services
    name = topic_name(command.topic)
    authorize(connection, Operation.PRODUCE, name)
    await connection.room_for_producers()
    topic = await services.topics.get(name, create=True)
    schema = command.schema if command.HasField("schema") else None
    version = await services.schemas.of_producer(name.partitioned_base, schema)
    if command.initial_subscription_name:
        # Where dead letters go is created by who sends them: nothing is lost until somebody looks.
        is_allowed = services.settings.allow_auto_subscription_creation
        if isinstance(topic, BrokerTopic):
            is_allowed = topic.policies.auto_subscription_creation.allow_auto_subscription_creation
        if not is_allowed:
            raise ServerRefusalError(
                ServerError.NotAllowedError, "Subscriptions are not created by themselves here: create it before."
            )
        await topic.subscriptions.create(command.initial_subscription_name)
    info = ProducerInfo(
        connection,
        command.producer_id,
        command.producer_name or services.names.next(),
        is_generated_name=not (command.producer_name and command.user_provided_producer_name),
        epoch=command.epoch,
        access_mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
    )

    topic = await services.topics.again(topic)

    def queued() -> None:
        connection.write(replies.producer_success(command.request_id, info.name, producer_ready=False))

    try:
        made, epoch = await _admit(connection, topic, info, queued)
    except ProducerRefusedError as error:
        holder = None if error.holder is None else cast(Peer, error.holder.connection)
        if holder is None or holder is connection or await holder.is_alive():
            raise
        await asyncio.sleep(0)  # who does not answer is hung up on, and leaves by that
        topic = await services.topics.again(topic)
        made, epoch = await _admit(connection, topic, info, queued)
    last = -1 if topic.dedup is None else topic.dedup.core.last_sequence_id(info.name)
    answer = replies.producer_success(
        command.request_id, info.name, last_sequence_id=last, schema_version=version, topic_epoch=epoch
    )
    return topic, info, answer, made


async def _admit(
    connection: Connection, topic: AnyTopic, info: ProducerInfo, queued: Callable[[], None]
) -> tuple[Producer, int | None]:
    connection.asking[info.producer_id] = (topic, info)
    try:
        return await topic.producers.add(info, connection, queued)
    finally:
        if connection.asking.get(info.producer_id) == (topic, info):
            del connection.asking[info.producer_id]


def sent(connection: Connection, entry: Sent) -> None:
    """SEND."""
    made = connection.producers.get(entry.producer_id)
    if made is None:
        log.warning(
            "Hanging up on %s: it sent for producer %d, which is not there.",
            *_who(connection, entry),
            extra={"connection": connection.address},
        )
        connection.close()
    elif made.is_closed:
        return  # it was told so, and will send again after it has come back
    elif (refused := _problem(entry)) is not None:
        made.answer(made.take(), replies.send_error(entry.producer_id, entry.sequence_id, *refused))
    else:
        made.topic.publish(made, entry)


def _problem(entry: Sent) -> tuple[ServerError, str] | None:
    if not entry.is_intact:
        return ServerError.ChecksumError, "The entry does not match its checksum: send it again."
    if entry.txnid_most or entry.txnid_least:
        return ServerError.NotAllowedError, "Transactions are not supported: send without one."
    return None


def _who(connection: Connection, entry: Sent) -> tuple[str, int]:
    return connection.address, entry.producer_id


async def close_producer(connection: Connection, command: CommandCloseProducer) -> None:
    """CLOSE_PRODUCER: answered once all that it sent is settled; its name is free then."""
    made = connection.producers.get(command.producer_id)
    connection.wanted.pop((BaseCommand.PRODUCER, command.producer_id), None)
    asking = connection.asking.pop(command.producer_id, None)
    if asking is not None:
        topic, info = asking
        topic.producers.remove(info)

    def gone() -> None:
        if made is not None:
            _remove(connection, made)
        connection.write(replies.success(command.request_id))

    if made is None or connection.is_closed:
        gone()
    else:
        made.when_drained(gone)


def _remove(connection: Connection, made: Producer) -> None:
    if connection.producers.get(made.info.producer_id) is made:
        del connection.producers[made.info.producer_id]
        connection.update_hold()
    made.topic.forget_producer(made)


def closed(connection: Connection) -> None:
    """The connection is gone, and its producers with it."""
    for topic, info in list(connection.asking.values()):
        topic.producers.remove(info)
    for made in list(connection.producers.values()):
        made.is_closed = True
        _remove(connection, made)


REQUESTS: Final[dict[int, Request]] = {
    BaseCommand.PRODUCER: Request(producer),
    BaseCommand.CLOSE_PRODUCER: Request(close_producer),
}
