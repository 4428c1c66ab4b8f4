"""Limits of a topic's subscriptions: their number, their consumers, dispatch rates and subscribe rates."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscribe_request import SubscribeRequest
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog.policies.policies import DispatchRate, SubscribeRate
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType

_MAX_CONSUMERS: Final = 10_000
"""Maximum number of consumers whose subscribe rate is tracked; above it all counts restart."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """The limits of a topic's subscriptions; 0 for no limit.

    Attributes:
        subscriptions: Maximum number of durable subscriptions of the topic, or of all if it is non-persistent.
        consumers: Maximum number of consumers of all subscriptions of the topic.
        consumers_each: Maximum number of consumers of one subscription.
        types: The enabled subscription types.
        dispatch: The limits of each subscription's dispatching.
        topic_rate: The dispatch rate of all subscriptions together.
        subscription_rate: The dispatch rate of each subscription.
        subscribe_rate: The rate at which one consumer may subscribe.
    """

    subscriptions: int = 0
    consumers: int = 0
    consumers_each: int = 0
    types: frozenset[SubscriptionType] = frozenset(("Exclusive", "Failover", "Shared", "Key_Shared"))
    dispatch: DispatchLimits = field(default_factory=DispatchLimits)
    topic_rate: DispatchRate = field(default_factory=DispatchRate)
    subscription_rate: DispatchRate = field(default_factory=DispatchRate)
    subscribe_rate: SubscribeRate = field(default_factory=SubscribeRate)


class SubscribeRates:
    """The subscribe rates of a topic's consumers, by host and name (Pulsar's `SubscribeRateLimiter`)."""

    def __init__(self) -> None:
        self._rate = SubscribeRate()
        self._consumers: dict[tuple[str, str], Throttle] = {}

    def set_rate(self, rate: SubscribeRate) -> None:
        """Apply a new rate."""
        if rate != self._rate:
            self._rate = rate
            self._consumers.clear()

    def check(self, consumer: Consumer, topic: str) -> None:
        """Count a SUBSCRIBE of a consumer, and refuse it above the rate.

        Args:
            consumer: The consumer.
            topic: The topic's name, for the error.

        Raises:
            ServerRefusalError: the consumer subscribes too often.
        """
        most, period_s = self._rate.subscribe_throttling_rate_per_consumer, self._rate.rate_period_in_second
        if most <= 0:
            return
        key = (consumer.peer.address.rpartition(":")[0], consumer.name)
        if key not in self._consumers and len(self._consumers) >= _MAX_CONSUMERS:
            self._consumers.clear()
        throttle, now_s = self._consumers.setdefault(key, Throttle(most, -1, period_s)), time.monotonic()
        if throttle.spend_tokens(now_s, 1, 0) > 0:
            throttle.spend_tokens(now_s, -1, 0)  # a refused attempt does not count
            raise ServerRefusalError(
                ServerError.TooManyRequests,
                f"Consumer {consumer.name!r} subscribes to {topic} more than {most} times in {period_s} s "
                "(subscribeRate): try again later.",
            )


def set_rate(throttle: Throttle, rate: DispatchRate) -> None:
    """Apply a dispatch rate to a throttle."""
    throttle.set_rate(
        rate.dispatch_throttling_rate_in_msg, rate.dispatch_throttling_rate_in_byte, rate.rate_period_in_second
    )


def check_limits(
    limits: SubscriptionLimits,
    topic: str,
    request: SubscribeRequest,
    *,
    consumers: int,
    of_subscription: int | None,
) -> None:
    """Check the type and the number of consumers; the number of subscriptions is checked when a new one is committed.

    Args:
        limits: The limits.
        topic: The topic's name.
        request: The consumer's request.
        consumers: The current number of consumers of all subscriptions.
        of_subscription: The current number of consumers of this subscription; None if it is not loaded.

    Raises:
        ServerRefusalError: a limit is reached, or the type is not enabled.
    """
    if request.type not in limits.types:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"Topic {topic} does not allow {request.type} subscriptions (subscriptionTypesEnabled): use "
            f"{' or '.join(sorted(limits.types))}.",
        )
    for count, limit, kind in (
        (consumers, limits.consumers, "consumers"),
        (of_subscription or 0, limits.consumers_each, f"consumers on subscription {request.name!r}"),
    ):
        if 0 < limit <= count:
            raise ServerRefusalError(
                ServerError.ConsumerBusy, f"Topic {topic} has {count} {kind}, its limit: close one, or raise the limit."
            )
