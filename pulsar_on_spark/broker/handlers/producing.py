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
"""The largest sequence id in the answer to PRODUCER, whose field is signed; the field of a SEND is unsigned."""
MAX_PRODUCERS: Final = 10_000
"""Maximum number of producers on one connection."""


async def producer(services: Services, connection: Connection, command: CommandProducer) -> None:
    """Handle PRODUCER: admit the producer. With WaitForExclusive, wait until the producer becomes the exclusive one."""
    key = (BaseCommand.PRODUCER, command.producer_id)
    if len(connection.producers) >= MAX_PRODUCERS:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"The connection has {MAX_PRODUCERS} producers, its limit: use another connection.",
        )
    connection.opening[key] = command.request_id
    try:
        topic, admitted, epoch, version = await _producer(services, connection, command)
    finally:
        is_wanted = connection.end_opening(key, command.request_id)
    if not is_wanted:
        topic.producers.remove(admitted.info)
        return
    if admitted.is_closed:
        raise ServerRefusalError(
            ServerError.ServiceNotReady,
            f"Topic {topic.name} was unloaded while the producer was created: look the topic up again.",
        )
    try:
        require_still(services, connection, BaseCommand.PRODUCER, command)
        admitted.metadata = {pair.key: pair.value for pair in command.metadata}
        answer = _answer(command, topic, admitted.info, epoch, version)
        connection.producers[command.producer_id] = admitted
        connection.update_hold()
        connection.write(answer)
    except BaseException:
        # The client does not know of the producer and so would never close it.
        _remove(connection, admitted)
        raise


async def _producer(
    services: Services, connection: Connection, command: CommandProducer
) -> tuple[AnyTopic, Producer, int | None, bytes]:
    """Admit a producer.

    Returns:
        The topic, the producer, the topic epoch if the producer is exclusive, else None, and the schema's version.
    """
    name = topic_name(command.topic)
    is_remote = is_replicator(command.producer_name)
    check_new_name("Producer name", command.producer_name)
    check_new_properties(f"Producer {command.producer_name!r}", {pair.key: pair.value for pair in command.metadata})
    await connection.wait_for_producer_room()
    topic = await services.topics.get(name, create=connection.creations)
    schema = command.schema if command.HasField("schema") else None
    # A replicator sends entries of several schemas and registers each schema first.
    version = NO_VERSION if is_remote else await services.schemas.of_producer(name.partitioned_base, schema)
    if command.initial_subscription_name:
        # A producer of dead letters creates their subscription, so that no dead letter is deleted before it is read.
        is_allowed = services.settings.allow_auto_subscription_creation
        if isinstance(topic, BrokerTopic):
            is_allowed = topic.policies.auto_subscription_creation.allow_auto_subscription_creation
        if not is_allowed:
            raise ServerRefusalError(
                ServerError.NotAllowedError,
                f"Automatic creation of subscriptions on {name} is disabled: create the initial subscription "
                f"{command.initial_subscription_name!r} first.",
            )
        check_subscription_name(command.initial_subscription_name)
        if topic.subscriptions.get(command.initial_subscription_name) is None:
            await connection.creations.wait_for_turn()
        await topic.subscriptions.create_subscription(command.initial_subscription_name)
    info = ProducerInfo(
        connection,
        command.producer_id,
        command.producer_name or services.names.next_name(),
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
        admitted, epoch = await _admit(connection, topic, info, queued)
    except ProducerRefusedError as error:
        holder = None if error.holder is None else cast(Peer, error.holder.connection)
        if holder is None or holder is connection or await holder.is_alive():
            raise
        await asyncio.sleep(0)  # `is_alive` aborted the holder's connection, which removes its producer
        topic = await services.topics.again(topic)
        admitted, epoch = await _admit(connection, topic, info, queued)
    return topic, admitted, epoch, version


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
    """Choose the deduplication of a replicator: by source positions if it sends them and the topic is persistent."""
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


def sent(connection: Connection, run: Sent) -> None:
    """Handle a run of SENDs: publish its entries."""
    admitted = connection.producers.get(run.producer_id)
    if admitted is None:
        log.warning(
            "Closing the connection of %s: it sent for producer %d, which does not exist.",
            *_who(connection, run),
            extra={"connection": connection.address},
        )
        connection.close()
    elif admitted.is_closed:
        return  # the client was notified, and sends the entries again after it has reconnected
    elif (refused := _problem(connection, run)) is not None:
        for entry in run.singles():
            if not admitted.is_closed:  # the first refusal closes a replicator
                admitted.refuse(admitted.take_numbers(1), entry.sequence_id, *refused)
    else:
        admitted.topic.publish_entries(admitted, run)


def _problem(connection: Connection, run: Sent) -> tuple[ServerError, str] | None:
    """Return the reason to refuse each entry of a run; None if there is none."""
    if not run.is_intact:
        return ServerError.ChecksumError, "The entry does not match its checksum: send it again."
    if run.txnid_most or run.txnid_least:
        return ServerError.NotAllowedError, "Transactions are not supported: send without a transaction."
    if run.num_messages > MAX_MESSAGES_IN_ENTRY:
        return (
            refusal_of_one_entry(connection),
            f"The batch has {run.num_messages} messages, at most {MAX_MESSAGES_IN_ENTRY} fit: send smaller batches.",
        )
    return None


def _who(connection: Connection, run: Sent) -> tuple[str, int]:
    return connection.address, run.producer_id


async def close_producer(connection: Connection, command: CommandCloseProducer) -> None:
    """Handle CLOSE_PRODUCER: answer once all messages of the producer have an outcome; its name is then free."""
    admitted = connection.producers.get(command.producer_id)
    connection.opening.pop((BaseCommand.PRODUCER, command.producer_id), None)
    unadmitted = connection.unadmitted.pop(command.producer_id, None)
    if unadmitted is not None:
        topic, info = unadmitted
        topic.producers.remove(info)

    def finish() -> None:
        if admitted is not None:
            _remove(connection, admitted)
        connection.write(replies.success(command.request_id))

    if admitted is None or connection.is_closed:
        finish()
    else:
        admitted.when_drained(finish)


def _remove(connection: Connection, admitted: Producer) -> None:
    if connection.producers.get(admitted.info.producer_id) is admitted:
        del connection.producers[admitted.info.producer_id]
        connection.update_hold()
    admitted.topic.forget_producer(admitted)


def closed(connection: Connection) -> None:
    """Remove the producers of a connection that has ended."""
    for topic, info in list(connection.unadmitted.values()):
        topic.producers.remove(info)
    for admitted in list(connection.producers.values()):
        admitted.is_closed = True
        _remove(connection, admitted)


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of producers' commands that are answered, by type of command."""
    return {
        BaseCommand.PRODUCER: Request(partial(producer, services)),
        BaseCommand.CLOSE_PRODUCER: Request(close_producer),
    }
