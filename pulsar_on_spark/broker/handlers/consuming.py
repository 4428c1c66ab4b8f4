"""Handlers of consumers' commands: subscribe, flow, seek, unsubscribe, close."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, cast

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request, Signal
from pulsar_on_spark.broker.cursors.decisions import InitialPosition
from pulsar_on_spark.broker.dispatch.values import KeySharedPolicy
from pulsar_on_spark.broker.handlers.command_rules import require_still, topic_name
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscribe_request import SubscribeRequest
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentSubscription, NonPersistentTopic
from pulsar_on_spark.broker.topics.subscribed import Subscribed
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import AnyTopic
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import (
    ConsumerBusyError,
    InvalidArgumentError,
    SubscriptionNotFoundError,
)
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import (
    TopicName,
    check_new_name,
    check_new_properties,
    check_subscription_name,
)
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandCloseConsumer,
    CommandFlow,
    CommandGetLastMessageId,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    KeySharedMode,
    MessageIdData,
    Schema,
    ServerError,
)
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType

log = logging.getLogger(__name__)

_EARLIEST_LEDGER: Final = 2**64 - 1
_LATEST_LEDGER: Final = 2**63 - 1
_SINGLE: Final = ("Exclusive", "Failover")
MAX_CONSUMERS: Final = 10_000
"""Maximum number of consumers on one connection."""
MAX_HASH_RANGES: Final = 1_000
"""Maximum number of hash ranges of one sticky Key_Shared consumer."""
CLOSE_AGAIN_S: Final = 1.0
"""Seconds after which CLOSE_CONSUMER is sent again to a client that sent FLOW for a disconnected consumer."""


# -- subscribing -------------------------------------------------------------------------------------------------------


async def subscribe(services: Services, connection: Connection, command: CommandSubscribe) -> None:
    """Handle SUBSCRIBE: connect a consumer, creating or acquiring the subscription."""
    number = command.consumer_id
    key = (BaseCommand.SUBSCRIBE, number)
    if key in connection.opening:
        raise ServerRefusalError(
            ServerError.ServiceNotReady,
            f"Consumer {number} of this connection is already being connected: wait for the first answer.",
        )
    if (known := connection.consumers.get(number)) is not None and not known.consumer.is_closed:
        connection.write(replies.success(command.request_id))
        return
    if len(connection.consumers) >= MAX_CONSUMERS:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"The connection has {MAX_CONSUMERS} consumers, its limit: use another connection.",
        )
    connection.opening[key] = command.request_id
    try:
        subscribed = await _subscribe(services, connection, command)
    finally:
        is_wanted = connection.end_opening(key, command.request_id)
    if not is_wanted:
        _leave(subscribed)
        return
    try:
        require_still(services, connection, BaseCommand.SUBSCRIBE, command)
        connection.consumers[number] = subscribed
        connection.write(replies.success(command.request_id))
    except BaseException:
        connection.consumers.pop(number, None)
        _leave(subscribed)
        raise


async def _subscribe(services: Services, connection: Connection, command: CommandSubscribe) -> Subscribed:
    name = topic_name(command.topic)
    _check(command, name)
    rate = connection.creations if command.force_topic_creation else None
    topic = await services.topics.get(name, create=rate)
    schema = command.schema if command.HasField("schema") else None
    await services.schemas.of_consumer(name.partitioned_base, schema, is_idle=topic.is_idle)
    if isinstance(topic, BrokerTopic):
        await topic.wait_until_readable()
    if isinstance(topic, BrokerTopic) and command.durable:
        await _require_subscription(services, connection, topic, command)
    meta = command.keySharedMeta
    consumer = Consumer(
        connection,
        command.consumer_id,
        command.consumer_name,
        priority=command.priority_level,
        epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
        ranges=tuple((range_.start, range_.end) for range_ in meta.hashRanges),
        takes_any_schema=command.HasField("schema") and command.schema.type == Schema.AutoConsume,
        metadata={pair.key: pair.value for pair in command.metadata},
    )
    request = SubscribeRequest(
        command.subscription,
        cast(SubscriptionType, CommandSubscribe.SubType.Name(command.subType)),
        is_durable=command.durable,
        start="latest" if isinstance(topic, NonPersistentTopic) else await _start(services.reader, topic, command),
        properties={pair.key: pair.value for pair in command.subscription_properties},
        key_shared=KeySharedPolicy(
            "STICKY" if meta.keySharedMode == KeySharedMode.STICKY else "AUTO_SPLIT", meta.allowOutOfOrderDelivery
        ),
        read_compacted=command.read_compacted,
    )
    topics = services.topics
    try:
        return await _connect(await topics.again(topic), consumer, request)
    except ConsumerBusyError:
        if not await _evict_dead_consumers(topic, command.subscription):
            raise
        return await _connect(await topics.again(topic), consumer, request)


async def _connect(topic: AnyTopic, consumer: Consumer, request: SubscribeRequest) -> Subscribed:
    if isinstance(topic, NonPersistentTopic):
        volatile = await topic.subscriptions.subscribe(consumer, request)
        return Subscribed(topic, volatile, consumer, partial(topic.subscriptions.remove_consumer, volatile, consumer))
    stored = await topic.subscriptions.subscribe(consumer, request)
    return Subscribed(topic, stored, consumer, partial(topic.subscriptions.remove_consumer, stored, consumer))


def _check(command: CommandSubscribe, name: TopicName) -> None:
    check_new_name("Consumer name", command.consumer_name)
    if len(command.keySharedMeta.hashRanges) > MAX_HASH_RANGES:
        raise ServerRefusalError(
            ServerError.ConsumerAssignError,
            f"Consumer {command.consumer_name!r} has {len(command.keySharedMeta.hashRanges)} hash ranges, but at most "
            f"{MAX_HASH_RANGES} are allowed: merge adjacent ranges.",
        )
    check_new_properties(f"Consumer {command.consumer_name!r}", {pair.key: pair.value for pair in command.metadata})
    try:
        check_subscription_name(command.subscription)
        if not (command.durable and name.is_persistent):
            check_new_name("Subscription name", command.subscription)
    except InvalidArgumentError as error:
        # Pulsar's NamingException has this code.
        raise ServerRefusalError(ServerError.ProducerBusy, str(error)) from error
    if command.read_compacted and CommandSubscribe.SubType.Name(command.subType) not in _SINGLE:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"Subscription {command.subscription!r} on {name} reads compacted: use the type Exclusive or Failover.",
        )
    if command.read_compacted and not name.is_persistent:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"Topic {name} is not persistent and never compacted: subscribe without read_compacted.",
        )


async def _require_subscription(
    services: Services, connection: Connection, topic: BrokerTopic, command: CommandSubscribe
) -> None:
    """Check that a subscription exists or may be created; wait for the client's creation rate before a creation.

    Raises:
        SubscriptionNotFoundError: the subscription does not exist, and automatic creation is disabled.
    """
    if topic.subscriptions.get(command.subscription) is not None:
        return
    view = await services.views.view()
    if view.get(SubscriptionRecord, f"{topic.topic_id}/{command.subscription}") is not None:
        return
    if not topic.policies.auto_subscription_creation.allow_auto_subscription_creation:
        raise SubscriptionNotFoundError(
            f"Subscription {command.subscription!r} on {command.topic} does not exist, and automatic creation of "
            f"subscriptions is disabled: create it first."
        )
    await connection.creations.wait_for_turn()


async def _start(reader: EntryReader, topic: BrokerTopic, command: CommandSubscribe) -> InitialPosition:
    """Return the start of a new subscription that the command requests."""
    if not command.durable:
        if command.start_message_rollback_duration_sec:
            since_ms = current_ms() - command.start_message_rollback_duration_sec * 1000
            return await reader.position_at(topic.part, topic.chain, since_ms)
        if command.HasField("start_message_id"):
            return _position(command.start_message_id, topic)
    return "earliest" if command.initialPosition == CommandSubscribe.Earliest else "latest"


async def _evict_dead_consumers(topic: AnyTopic, name: str) -> bool:
    """Disconnect the consumers of the named subscription whose connections are dead; return True if there were any."""
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        return False
    # `is_alive` aborts a connection that does not respond, which removes its consumers.
    alive = [await consumer.peer.is_alive() for consumer in subscription.consumers]
    await asyncio.sleep(0)
    return not all(alive)


def _position(id_: MessageIdData, topic: BrokerTopic) -> Position:
    """Return the position to read from for a client that starts at a message; the client drops earlier messages."""
    first = id_.first_chunk_message_id if id_.HasField("first_chunk_message_id") else id_
    if first.ledgerId >= _EARLIEST_LEDGER:
        return EARLIEST
    if first.ledgerId >= _LATEST_LEDGER:
        return topic.chain.end
    return Position(LedgerId(first.ledgerId), EntryId(max(0, signed(first.entryId))))


def signed(number: int) -> int:
    """Return an unsigned 64-bit entry id of the protocol as a signed number."""
    return number - (1 << 64) if number >> 63 else number


# -- receiving ---------------------------------------------------------------------------------------------------------


def flow(connection: Connection, command: CommandFlow) -> None:
    """Handle FLOW. If the broker has disconnected the consumer, CLOSE_CONSUMER may be sent again (`_close_again`)."""
    if (subscribed := connection.consumers.get(command.consumer_id)) is None:
        return
    if subscribed.consumer.is_closed:
        _close_again(connection, subscribed.consumer)
        return
    subscribed.consumer.flowed_ms = current_ms()
    subscribed.subscription.flow(subscribed.consumer, command.messagePermits)


def _close_again(connection: Connection, consumer: Consumer) -> None:
    """Send CLOSE_CONSUMER once more if the client does not subscribe within `CLOSE_AGAIN_S`.

    Go's client drops a CLOSE_CONSUMER that arrives before the client has noted the success of its SUBSCRIBE, and would
    then wait for messages for ever. Other clients drop the second CLOSE_CONSUMER, because they have seen the first.
    """
    if consumer.is_closed_again:
        return
    consumer.is_closed_again = True

    def send() -> None:
        known = connection.consumers.get(consumer.consumer_id)
        is_subscribing = (BaseCommand.SUBSCRIBE, consumer.consumer_id) in connection.opening
        if known is not None and known.consumer is consumer and not is_subscribing and not connection.is_closed:
            consumer.send_close(for_seek=consumer.left_for_seek)

    asyncio.get_running_loop().call_later(CLOSE_AGAIN_S, send)


async def seek(services: Services, connection: Connection, command: CommandSeek) -> None:
    """Handle SEEK: disconnect all consumers of the subscription, move its cursor, and answer.

    A client that has not reconnected yet may seek again: Go's reader seeks during its creation if it starts at the
    latest message inclusively, so a seek by the user may arrive before the reader has reconnected. `Recheck` does not
    see consumers that are disconnected, so this handler checks the client's permission itself.
    """
    topic, subscription = _seek_target(connection, command.consumer_id)
    await topic.wait_until_readable()
    if command.HasField("message_id"):
        position = _position(command.message_id, topic)
    else:
        sent_ms = command.message_publish_time
        position = await subscription.entries.position_at(topic.part, subscription.chain, sent_ms)
    subscribing = CommandSubscribe(topic=topic.name.full, subscription=subscription.name)
    require_still(services, connection, BaseCommand.SUBSCRIBE, subscribing)
    await topic.subscriptions.seek(subscription, position)
    connection.write(replies.success(command.request_id))


async def get_last_message_id(connection: Connection, command: CommandGetLastMessageId) -> None:
    """Handle GET_LAST_MESSAGE_ID. The answer's mark-delete position is the last acknowledged entry, as in Pulsar."""
    topic, subscription, _ = stored_consumer(connection, command.consumer_id)
    await topic.wait_until_readable()
    await subscription.is_renewed.wait()
    last = await subscription.entries.last_message_id(topic.part, subscription.chain)
    ledger, entry, batch_index = (-1, -1, -1) if last is None else (last.ledger, last.entry, last.batch_index)
    next_ = subscription.kept.cursor.mark_delete
    connection.write(
        replies.get_last_message_id_response(
            command.request_id,
            ledger,
            entry,
            partition=topic.part.partition,
            batch_index=batch_index,
            mark_delete=(next_.ledger, next_.entry - 1),
        )
    )


# -- leaving -----------------------------------------------------------------------------------------------------------


async def unsubscribe(connection: Connection, command: CommandUnsubscribe) -> None:
    """Handle UNSUBSCRIBE: delete the subscription, or remove the consumer if the topic is not persistent."""
    subscribed = _required(connection, command.consumer_id)
    if isinstance(subscribed.topic, NonPersistentTopic):
        _leave(subscribed)  # there is nothing to delete
    else:
        topic, subscription, consumer = stored_consumer(connection, command.consumer_id)
        await topic.subscriptions.unsubscribe(subscription, consumer, force=command.force)
    connection.consumers.pop(command.consumer_id, None)
    connection.write(replies.success(command.request_id))


async def close_consumer(connection: Connection, command: CommandCloseConsumer) -> None:
    """Handle CLOSE_CONSUMER, which always succeeds: remove the consumer, and cancel a running SUBSCRIBE."""
    connection.opening.pop((BaseCommand.SUBSCRIBE, command.consumer_id), None)
    if (subscribed := connection.consumers.pop(command.consumer_id, None)) is not None:
        _leave(subscribed)
    connection.write(replies.success(command.request_id))


def closed(connection: Connection) -> None:
    """Remove the consumers of a connection that has ended."""
    for subscribed in connection.consumers.values():
        _leave(subscribed)
    connection.consumers.clear()


def writable_again(connection: Connection) -> None:
    """Resume deliveries after the client has read enough."""
    for subscribed in connection.consumers.values():
        if not subscribed.consumer.is_closed:
            subscribed.subscription.writable_again(subscribed.consumer)


def _leave(subscribed: Subscribed) -> None:
    if not subscribed.consumer.is_closed:
        subscribed.consumer.is_closed = True
        subscribed.leave()


def live_consumer(connection: Connection, number: int) -> Subscribed | None:
    """Return a client's consumer by the client's consumer id; None if the consumer is not connected."""
    subscribed = connection.consumers.get(number)
    return None if subscribed is None or subscribed.consumer.is_closed else subscribed


def _required(connection: Connection, number: int) -> Subscribed:
    subscribed = live_consumer(connection, number)
    if subscribed is None:
        raise ServerRefusalError(ServerError.ConsumerNotFound, f"Consumer {number} is not connected: subscribe first.")
    return subscribed


def _seek_target(connection: Connection, number: int) -> tuple[BrokerTopic, Subscription]:
    """Return the topic and subscription in which a client's consumer may seek (errors as `stored_consumer`).

    After a seek has disconnected the consumer, the client may seek again until another consumer subscribes.
    """
    subscribed = connection.consumers.get(number)
    if subscribed is not None and subscribed.consumer.left_for_seek and isinstance(subscribed.topic, BrokerTopic):
        subscription = subscribed.subscription
        if isinstance(subscription, Subscription) and not subscription.consumers:
            return subscribed.topic, subscription
    topic, stored, _ = stored_consumer(connection, number)
    return topic, stored


def stored_consumer(connection: Connection, number: int) -> tuple[BrokerTopic, Subscription, Consumer]:
    """Return a consumer's topic and subscription, and the consumer, by the client's consumer id.

    Raises:
        ServerRefusalError: the consumer is not connected, or its topic is not persistent.
    """
    topic, subscription, consumer, _ = _required(connection, number)
    if isinstance(topic, NonPersistentTopic) or isinstance(subscription, NonPersistentSubscription):
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"Topic {topic.name} is not persistent and stores no messages: use a persistent topic.",
        )
    return topic, subscription, consumer


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of consumers' commands that are answered, by type of command."""
    return {
        BaseCommand.SUBSCRIBE: Request(partial(subscribe, services)),
        BaseCommand.SEEK: Request(partial(seek, services)),
        BaseCommand.GET_LAST_MESSAGE_ID: Request(get_last_message_id),
        BaseCommand.UNSUBSCRIBE: Request(unsubscribe),
        BaseCommand.CLOSE_CONSUMER: Request(close_consumer),
    }


SIGNALS: Final[dict[int, Signal[Connection]]] = {BaseCommand.FLOW: flow}
