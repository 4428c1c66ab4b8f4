"""Non-persistent topics: messages go to the consumers that have permits at that moment, and are not stored.

As in Pulsar, producers get receipts at once, all message ids are 0:0, acknowledgements have no effect, and slow
consumers lose messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pulsar_on_spark.broker.cursors.decisions import require_room
from pulsar_on_spark.broker.dispatch.active_consumer import ActiveConsumer
from pulsar_on_spark.broker.dispatch.keys import KeySplit, key_split
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.values import Ack, ActiveConsumerChanged, ConsumerId
from pulsar_on_spark.broker.producing.producer import Producer, Published
from pulsar_on_spark.broker.producing.producers import Producers
from pulsar_on_spark.broker.producing.topic_dedup import TopicDedup
from pulsar_on_spark.broker.producing.topic_producers import TopicProducers
from pulsar_on_spark.broker.reading.entry_look import EntryLook, look_at
from pulsar_on_spark.broker.runtime.peer import refusal_of_one_entry
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscribe_request import SubscribeRequest
from pulsar_on_spark.broker.subscriptions.subscription_limits import SubscriptionLimits, check_limits
from pulsar_on_spark.broker.topics.topic_policies import encryption_refusal, policies_of, subscription_limits
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import ConsumerBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog.policies.policies import Policies

_NO_ID: Final = 0
"""The ledger id and entry id of every message."""
_AT_ONCE: Final = 0
"""Time and delay of a change of the active consumer: it needs no delay, as messages are not acknowledged."""


class NonPersistentSubscription:
    """A subscription of a non-persistent topic, which exists while it has consumers.

    Args:
        topic: The topic's full name.
        partition: The topic's partition index, -1 if it is not a partition.
        request: The first consumer's request.

    Attributes:
        name: Its name.
        type: Its type.
        dropped: The counters of messages that no consumer could take.
    """

    def __init__(self, topic: str, partition: int, request: SubscribeRequest) -> None:
        self.name = request.name
        self.type = request.type
        self.dropped = Published()
        self._topic = topic
        self._partition = partition
        self._key_shared = request.key_shared
        self._split: KeySplit | None = key_split(request.key_shared) if request.type == "Key_Shared" else None
        self._election: ActiveConsumer | None = None
        if request.type in ("Exclusive", "Failover"):
            self._election = ActiveConsumer(is_failover=request.type == "Failover", topic=topic, partition=partition)
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._permits: dict[ConsumerId, int] = {}
        self._last_id = 0

    @property
    def consumers(self) -> list[Consumer]:
        """The connected consumers, in the order in which they subscribed."""
        return list(self._consumers.values())

    @property
    def active(self) -> Consumer | None:
        """The active consumer of an Exclusive or Failover subscription; None for other types, or without consumers."""
        active_id = None if self._election is None else self._election.id
        return None if active_id is None else self._consumers[active_id]

    def permits(self, consumer: Consumer) -> int:
        """Return the number of messages that a consumer may still get; 0 if it is not connected."""
        return self._permits.get(consumer.id, 0)

    def add(self, consumer: Consumer, request: SubscribeRequest) -> None:
        """Add a consumer.

        Raises:
            ConsumerBusyError: the connected consumers have another type or division of keys, or are Exclusive.
            ConsumerAssignError: the consumer's hash ranges are invalid or overlap another consumer's.
        """
        is_other = (request.type, request.key_shared) != (self.type, self._key_shared)
        if self._consumers and is_other:
            raise ConsumerBusyError(
                f"Subscription {self.name!r} on {self._topic} has {self.type} consumers: close them first, or use "
                "another name."
            )
        self._last_id += 1
        consumer.id = ConsumerId(self._last_id)
        changes: list[ActiveConsumerChanged] = []
        if self._split is not None:
            self._split.add(consumer.info)
        if self._election is not None:
            changes = self._election.add(consumer.info, _AT_ONCE, _AT_ONCE)
        self._consumers[consumer.id] = consumer
        self._permits[consumer.id] = 0
        self._notify_consumers(changes)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; do nothing if it was removed before."""
        if self._consumers.get(consumer.id) is consumer:
            del self._consumers[consumer.id]
            del self._permits[consumer.id]
            if self._split is not None:
                self._split.remove(consumer.id)
            if self._election is not None:
                self._notify_consumers(self._election.remove(consumer.id, _AT_ONCE, _AT_ONCE))

    def deliver(self, entry: bytes, look: EntryLook) -> None:
        """Send an entry to the next consumer with permits, or count it as dropped if there is none.

        Args:
            entry: The entry's bytes.
            look: The fields of its metadata.
        """
        consumer = next(filter(self._can_take, self._candidates(look)), None)
        if consumer is None:
            self.dropped.messages += look.messages
            self.dropped.bytes += len(entry)
            return
        self._permits[consumer.id] -= look.messages
        consumer.messages_out += look.messages
        consumer.bytes_out += len(entry)
        number, partition = consumer.consumer_id, self._partition
        head = replies.message_head(number, _NO_ID, _NO_ID, partition, 0, (), consumer.epoch, len(entry))
        consumer.peer.write(head + entry)
        if self.type == "Shared":  # the next consumer gets the next entry
            self._consumers[consumer.id] = self._consumers.pop(consumer.id)

    def _candidates(self, look: EntryLook) -> Iterable[Consumer]:
        if self._split is not None:
            owner = self._split.consumer(self._split.slot(look.key or b""))
            return () if owner is None else (self._consumers[owner],)
        if self.type == "Shared":
            return sorted(self._consumers.values(), key=lambda consumer: consumer.priority)
        return () if self.active is None else (self.active,)

    def _can_take(self, consumer: Consumer) -> bool:
        return self._permits[consumer.id] > 0 and consumer.peer.is_writable

    def _notify_consumers(self, changes: Iterable[ActiveConsumerChanged]) -> None:
        for changed in changes:
            self._consumers[changed.consumer].send_active_change(is_active=changed.is_active)

    # -- commands of consumers -----------------------------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits to a consumer (FLOW), each for one message."""
        if consumer.id in self._permits:
            self._permits[consumer.id] += permits

    def ack(self, consumer: Consumer, acks: Iterable[Ack], *, cumulative: bool = False) -> None:
        """Ignore acknowledgements: no message is stored."""

    async def wait_durable(self) -> None:
        """Return at once: no message is stored."""

    def redeliver(
        self, consumer: Consumer, entries: Iterable[tuple[LedgerId, EntryId]] | None, epoch: int | None
    ) -> None:
        """Ignore the request: no message is stored."""

    def writable_again(self, consumer: Consumer) -> None:
        """Do nothing: messages that arrived while the connection had no room were dropped."""


class NonPersistentSubscriptions:
    """The subscriptions of a non-persistent topic.

    Args:
        name: The topic.
        left: Called after the last consumer of a subscription has left.
    """

    def __init__(self, name: TopicName, left: Callable[[], None]) -> None:
        self._name = name
        self._left = left
        self._limits = SubscriptionLimits()
        self._open: dict[str, NonPersistentSubscription] = {}

    @property
    def all(self) -> list[NonPersistentSubscription]:
        """The subscriptions, each of which has consumers."""
        return list(self._open.values())

    @property
    def is_empty(self) -> bool:
        """True if no consumer is connected."""
        return not self._open

    def get(self, name: str) -> NonPersistentSubscription | None:
        """Return the subscription of a name; None if it has no consumers."""
        return self._open.get(name)

    def apply_limits(self, limits: SubscriptionLimits) -> None:
        """Apply new limits; connected consumers stay connected."""
        self._limits = limits

    async def subscribe(self, consumer: Consumer, request: SubscribeRequest) -> NonPersistentSubscription:
        """Connect a consumer, and return its subscription, which is created for its first consumer.

        Raises:
            ServerRefusalError: a limit is reached, or the type is not enabled.
            ConsumerBusyError, ConsumerAssignError: as `NonPersistentSubscription.add`.
        """
        subscription = self._open.get(request.name)
        check_limits(
            self._limits,
            self._name.full,
            request,
            consumers=sum(len(loaded.consumers) for loaded in self._open.values()),
            of_subscription=None if subscription is None else len(subscription.consumers),
        )
        if subscription is None:
            require_room(self._name.full, len(self._open), self._limits.subscriptions)
            subscription = NonPersistentSubscription(self._name.full, self._name.partition_index, request)
        subscription.add(consumer, request)
        self._open[request.name] = subscription
        return subscription

    async def create_subscription(self, name: str) -> None:
        """Do nothing: a subscription without consumers would get no messages."""

    def remove_consumer(self, subscription: NonPersistentSubscription, consumer: Consumer) -> None:
        """Remove a consumer that its client closed, or whose connection has ended."""
        subscription.remove(consumer)
        if not subscription.consumers:
            self._open.pop(subscription.name, None)
            self._left()

    def close(self) -> None:
        """Disconnect all consumers."""
        for subscription in self.all:
            for consumer in subscription.consumers:
                consumer.send_close()
                self.remove_consumer(subscription, consumer)


class NonPersistentTopic:
    """A non-persistent topic, which exists in memory only; persistent ones are `BrokerTopic`.

    Args:
        name: Its name.
        defaults: The default policies.
        publish_rate: The publish rate of all topics together.
        emptied: Called after the last client has left.

    Attributes:
        name: Its name.
        published: The counters of published messages.
        created_ms: Time of its creation, in milliseconds since 1970.
    """

    def __init__(
        self,
        name: TopicName,
        defaults: Policies,
        publish_rate: Throttle,
        emptied: Callable[[NonPersistentTopic], None],
    ) -> None:
        self.name = name
        self.published = Published()
        self.created_ms = current_ms()
        self.dedup: TopicDedup | None = None
        core = Producers(name.full, None, defaults.max_producers_per_topic)
        self.producers = TopicProducers(self, core, _no_epoch_is_durable, publish_rate)
        self.subscriptions = NonPersistentSubscriptions(name, self._left)
        self._defaults = self._policies = defaults
        self._emptied = emptied

    @property
    def is_idle(self) -> bool:
        """True if nothing was published, and the topic's only clients are consumers that accept any schema."""
        consumers = [consumer for subscription in self.subscriptions.all for consumer in subscription.consumers]
        is_unused = not self.published.messages and self.producers.is_empty
        return is_unused and all(consumer.takes_any_schema for consumer in consumers)

    def follow_record(self, view: View) -> None:
        """Apply the current policies of the topic and its namespace; connected clients stay connected."""
        self._policies = policies = policies_of(view, self.name, self._defaults)
        self.producers.apply_limits(policies)
        self.subscriptions.apply_limits(subscription_limits(policies, DispatchLimits()))

    def publish_entries(self, producer: Producer, sent: Sent) -> None:
        """Deliver a run of entries, and send their receipts."""
        for one in sent.singles():
            if not producer.is_closed:
                self._publish_entry(producer, one)

    def _publish_entry(self, producer: Producer, sent: Sent) -> None:
        refusal = encryption_refusal(self._policies, sent.entry)
        if refusal is not None:
            producer.refuse(producer.take_numbers(1), sent.sequence_id, refusal_of_one_entry(producer.peer), refusal)
            return
        look = look_at(sent.entry)
        for subscription in self.subscriptions.all:
            subscription.deliver(sent.entry, look)
        self.published.last_ms = current_ms()
        for published in (self.published, producer.published):
            published.messages += look.messages
            published.bytes += len(sent.entry)
        receipt = replies.Receipts(sent.sequence_id, 1, sent.highest_sequence_id, _NO_ID, _NO_ID, 1)
        producer.peer.write(replies.send_receipts(producer.info.producer_id, [receipt]))
        self.producers.on_entries_accepted(sent)

    def forget_producer(self, producer: Producer) -> None:
        """Remove a producer that its client closed, or whose connection has ended."""
        self.producers.remove(producer.info)
        self._left()

    async def close(self) -> None:
        """Disconnect all clients."""
        self.producers.disconnect_all()
        self.subscriptions.close()
        self._left()

    def _left(self) -> None:
        if self.producers.is_empty and self.subscriptions.is_empty:
            self._emptied(self)


async def _no_epoch_is_durable(_: int) -> None:
    """Do nothing: a non-persistent topic's epochs last as long as the topic."""
