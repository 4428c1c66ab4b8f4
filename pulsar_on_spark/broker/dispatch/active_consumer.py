"""Election of the active consumer of an Exclusive or Failover subscription."""

from __future__ import annotations

from typing import Final

from pulsar_on_spark.broker.dispatch.keys import sticky_key_hash
from pulsar_on_spark.broker.dispatch.values import ActiveConsumerChanged, ConsumerId, ConsumerInfo
from pulsar_on_spark.model.errors import ConsumerBusyError

_PLACES: Final = 100
_RING: Final = 1 << 31
"""Number of places that a consumer has on the ring of hashes, and the ring's size."""


class ActiveConsumer:
    """The active consumer of a subscription, and its election.

    Failover sorts the consumers with the lowest priority number by name. The partition's index modulo their number is
    the index of the elected consumer in this order, so that the partitions of a topic are spread over the consumers.
    Topics without partitions are spread, too: each consumer has a hundred places on a ring of hashes, by its name, and
    the one with the first place from the hash of the topic's name on is elected. The rules and hashes are Pulsar's
    (`AbstractDispatcherSingleActiveConsumer`).

    Args:
        is_failover: True for Failover; False for Exclusive, which has one consumer, no delay and no notices.
        topic: The topic's full name.
        partition: The topic's partition index, -1 if it is not partitioned.

    Attributes:
        id: The active consumer; None if there is none.
        change_at_ms: Time at which the elected consumer becomes active, in milliseconds since 1970; None if no change
            is pending.
    """

    def __init__(self, *, is_failover: bool, topic: str, partition: int = -1) -> None:
        self.id: ConsumerId | None = None
        self.change_at_ms: int | None = None
        self._is_failover = is_failover
        self._partition = partition
        self._place = sticky_key_hash(topic.encode())
        self._distances: dict[ConsumerId, int] = {}
        """The distance on the ring from the topic to the nearest place of each consumer, where these decide."""
        self._consumers: dict[ConsumerId, ConsumerInfo] = {}
        self._unnotified: list[ConsumerId] = []
        """Consumers that were elected when they subscribed, and are notified after the delay."""

    def add(self, info: ConsumerInfo, now_ms: int, delay_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer, and return the notices to send to consumers; always none on Exclusive.

        Args:
            info: The consumer.
            now_ms: The current time, in milliseconds since 1970.
            delay_ms: Delay in milliseconds before another consumer becomes active on Failover; 0 for none.

        Raises:
            ConsumerBusyError: the subscription is Exclusive and has a consumer.
        """
        if self._consumers and not self._is_failover:
            holder = next(iter(self._consumers.values())).name
            raise ConsumerBusyError(
                f"The subscription is Exclusive and has the consumer {holder!r}: close that consumer, or use another "
                "subscription name."
            )
        self._consumers[info.id] = info
        if self._is_failover and self._partition < 0:
            self._distances[info.id] = self._distance(info.name)
        if self._elected() != info.id:
            return self._elect(now_ms, delay_ms) or self._notices(info.id)
        self._unnotified.append(info.id)
        return self._elect(now_ms, delay_ms)

    def remove(self, consumer: ConsumerId, now_ms: int, delay_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer, if it was added, and return the notices to send to the others (arguments as `add`)."""
        if self._consumers.pop(consumer, None) is None:
            return []
        self._distances.pop(consumer, None)
        if consumer == self.id:
            self.id = None
        if not self._consumers:
            self.change_at_ms = None
            return []
        return self._elect(now_ms, delay_ms)

    def tick(self, now_ms: int, delay_ms: int) -> list[ActiveConsumerChanged]:
        """Activate the elected consumer if `change_at_ms` has come; return the notices to send (arguments as `add`).

        Without another elected consumer, return the notices that were delayed for new consumers.
        """
        if self.change_at_ms is None or self.change_at_ms - delay_ms <= now_ms < self.change_at_ms:
            return []  # a clock that was set back does not prolong the delay
        self.change_at_ms = None
        elected = self._elected()
        if elected != self.id:
            return self._activate(elected)
        unnotified, self._unnotified = self._unnotified, []
        return self._notices(
            *(consumer for consumer in unnotified if consumer in self._consumers and consumer != self.id)
        )

    # ------------------------------------------------------------------------------------------------------------------

    def _elected(self) -> ConsumerId:
        ranked = sorted(self._consumers.values(), key=lambda x: (x.priority, x.name, x.id))
        first = [info.id for info in ranked if info.priority == ranked[0].priority]
        if self._partition >= 0:
            return first[self._partition % len(first)]
        # Of consumers with the same name, the last one takes the places of the others.
        return min(reversed(first), key=lambda id_: self._distances.get(id_, 0))

    def _distance(self, name: str) -> int:
        places = (sticky_key_hash(f"{name}{number}".encode()) for number in range(_PLACES))
        return min((place - self._place) % _RING for place in places)

    def _elect(self, now_ms: int, delay_ms: int) -> list[ActiveConsumerChanged]:
        """Elect a consumer after consumers have changed, and activate it at once or after the delay."""
        elected = self._elected()
        if elected == self.id or self.change_at_ms is not None:
            return []
        if not self._is_failover or delay_ms == 0:
            return self._activate(elected)
        self.change_at_ms = now_ms + delay_ms
        return []

    def _activate(self, consumer: ConsumerId) -> list[ActiveConsumerChanged]:
        self.id = consumer
        self._unnotified.clear()
        return self._notices(*self._consumers)

    def _notices(self, *consumers: ConsumerId) -> list[ActiveConsumerChanged]:
        if not self._is_failover:
            return []
        return [ActiveConsumerChanged(consumer, consumer == self.id) for consumer in consumers]
