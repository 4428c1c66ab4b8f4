"""Handlers of producers' commands and of SEND."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.handlers.command_rules import require_still, topic_name
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.producing.producers import AccessMode, ProducerInfo
from pulsar_on_spark.broker.producing.replicated import Replication, is_replicator
from pulsar_on_spark.broker.producing.topic_producers import ProducerRefusedError
from pulsar_on_spark.broker.runtime.peer import Peer, refusal_of_one_entry
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.schemas import NO_VERSION
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.model.names import check_new_name, check_new_properties, check_subscription_name
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, CommandCloseProducer, CommandProducer, ServerError
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.protocol.server import Sent

log = logging.getLogger(__name__)

_MAX_SEQUENCE_ID: Final = 2**63 - 1
"""The largest number in the answer to PRODUCER; SEND may have twice as large ones."""
MAX_PRODUCERS: Final = 10_000
"""Maximum number of producers on one connection."""


async def producer(services: Services, connection: Connection, command: CommandProducer) -> None:
    """Handle PRODUCER: admit the producer; WaitForExclusive may have to wait for its turn."""
    key = (BaseCommand.PRODUCER, command.producer_id)
    if len(connection.producers) >= MAX_PRODUCERS:
        raise ServerRefusalError(
            ServerError.NotAllowedError, f"The connection has {MAX_PRODUCERS} producers already: use another."
        )
    connection.opening[key] = command.request_id
    try:
        topic, made, epoch, version = await _producer(services, connection, command)
    finally:
        is_wanted = connection.end_opening(key, command.request_id)
    if not is_wanted:
        topic.producers.remove(made.info)
        return
    if made.is_closed:
        raise ServerRefusalError(
            ServerError.ServiceNotReady, f"Topic {topic.name} was unloaded meanwhile: look it up again."
        )
    try:
        require_still(services, connection, BaseCommand.PRODUCER, command)
        made.metadata = {each.key: each.value for each in command.metadata}
        answer = _answer(command, topic, made.info, epoch, version)
        connection.producers[command.producer_id] = made
        connection.update_hold()
        connection.write(answer)
    except BaseException:
        # Its client does not know of it, so nothing but this would ever remove it.
        _remove(connection, made)
        raise


async def _producer(
    services: Services, connection: Connection, command: CommandProducer
) -> tuple[AnyTopic, Producer, int | None, bytes]:
    """Admit a producer; return its topic, itself, the topic epoch if it is exclusive, and its schema's version."""
    name = topic_name(command.topic)
    is_remote = is_replicator(command.producer_name)
    check_new_name("Producer name", command.producer_name)
    check_new_properties(f"Producer {command.producer_name!r}", {each.key: each.value for each in command.metadata})
    await connection.wait_for_producer_room()
    topic = await services.topics.get(name, create=connection.creations)
    schema = command.schema if command.HasField("schema") else None
    # A replicator sends entries of several schemas and registers each schema first.
    version = NO_VERSION if is_remote else await services.schemas.of_producer(name.partitioned_base, schema)
    if command.initial_subscription_name:
        # The producer of dead letters creates their subscription, so that none is deleted before it is read.
        is_allowed = services.settings.allow_auto_subscription_creation
        if isinstance(topic, BrokerTopic):
            is_allowed = topic.policies.auto_subscription_creation.allow_auto_subscription_creation
        if not is_allowed:
            raise ServerRefusalError(
                ServerError.NotAllowedError, "Automatic creation of subscriptions is disabled: create it first."
            )
        check_subscription_name(command.initial_subscription_name)
        if topic.subscriptions.get(command.initial_subscription_name) is None:
            await connection.creations.wait_for_turn()
        await topic.subscriptions.create_subscription(command.initial_subscription_name)
    info = ProducerInfo(
        connection,
        command.producer_id,
        command.producer_name or services.names.next(),
        is_generated_name=not (command.producer_name and command.user_provided_producer_name),
        epoch=command.epoch,
        access_mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        replication=_replication(connection, topic) if is_remote else None,
        encrypts=command.encrypted,
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
        await asyncio.sleep(0)  # `is_alive` aborted the holder's connection, which removes its producer
        topic = await services.topics.again(topic)
        made, epoch = await _admit(connection, topic, info, queued)
    return topic, made, epoch, version


def _answer(command: CommandProducer, topic: AnyTopic, info: ProducerInfo, epoch: int | None, version: bytes) -> bytes:
    is_remote = info.replication is not None
    last = -1 if topic.dedup is None or is_remote else topic.dedup.core.last_sequence_id(info.name)
    return replies.producer_success(
        command.request_id,
        info.name,
        last_sequence_id=min(last, _MAX_SEQUENCE_ID),
        schema_version=version,
        topic_epoch=epoch,
    )


def _replication(connection: Connection, topic: AnyTopic) -> Replication:
    """Choose how a replicator is deduplicated: by positions if its source sends them and the topic is persistent."""
    by_position = connection.knows_source_positions and isinstance(topic, BrokerTopic)
    return Replication.BY_POSITION if by_position else Replication.BY_SEQUENCE_ID


async def _admit(
    connection: Connection, topic: AnyTopic, info: ProducerInfo, queued: Callable[[], None]
) -> tuple[Producer, int | None]:
    connection.unadmitted[info.producer_id] = (topic, info)
    try:
        return await topic.producers.add(info, connection, queued)
    finally:
        if connection.unadmitted.get(info.producer_id) == (topic, info):
            del connection.unadmitted[info.producer_id]


def sent(connection: Connection, entry: Sent) -> None:
    """Handle SEND: publish an entry."""
    made = connection.producers.get(entry.producer_id)
    if made is None:
        log.warning(
            "Closing the connection of %s: it sent for producer %d, which does not exist.",
            *_who(connection, entry),
            extra={"connection": connection.address},
        )
        connection.close()
    elif made.is_closed:
        return  # its client knows, and sends again after it has reconnected
    elif (refused := _problem(connection, entry)) is not None:
        made.refuse(made.take_number(), entry.sequence_id, *refused)
    else:
        made.topic.publish_entry(made, entry)


def _problem(connection: Connection, entry: Sent) -> tuple[ServerError, str] | None:
    if not entry.is_intact:
        return ServerError.ChecksumError, "The entry does not match its checksum: send it again."
    if entry.txnid_most or entry.txnid_least:
        return ServerError.NotAllowedError, "Transactions are not supported: send without one."
    if entry.num_messages > MAX_MESSAGES_IN_ENTRY:
        return (
            refusal_of_one_entry(connection),
            f"The batch has {entry.num_messages} messages, but at most {MAX_MESSAGES_IN_ENTRY} fit: send smaller ones.",
        )
    return None


def _who(connection: Connection, entry: Sent) -> tuple[str, int]:
    return connection.address, entry.producer_id


async def close_producer(connection: Connection, command: CommandCloseProducer) -> None:
    """Handle CLOSE_PRODUCER: answer once all its messages are settled; then its name is free."""
    made = connection.producers.get(command.producer_id)
    connection.opening.pop((BaseCommand.PRODUCER, command.producer_id), None)
    asking = connection.unadmitted.pop(command.producer_id, None)
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
    """Remove the producers of a connection that has ended."""
    for topic, info in list(connection.unadmitted.values()):
        topic.producers.remove(info)
    for made in list(connection.producers.values()):
        made.is_closed = True
        _remove(connection, made)


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of producers' commands."""
    return {
        BaseCommand.PRODUCER: Request(partial(producer, services)),
        BaseCommand.CLOSE_PRODUCER: Request(close_producer),
    }
