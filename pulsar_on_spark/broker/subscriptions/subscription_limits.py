"""How many subscriptions and consumers a topic may have, how fast they get entries, and how often they may come."""

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
"""Consumers whose coming is counted; with more, all counts begin anew."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """How many there may be; 0 for no limit.

    Attributes:
        subscriptions: Durable subscriptions of the topic that have consumers.
        consumers: Consumers of all subscriptions of the topic.
        consumers_each: Consumers of one subscription.
        types: The types of subscriptions that consumers may have.
        dispatch: What bounds each one's dispatching.
        topic_rate: How fast entries go to all subscriptions together.
        subscription_rate: How fast they go to each.
        subscribe_rate: How often one consumer may subscribe.
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
    """How often each consumer, by its host and name, subscribes to one topic (Pulsar's `SubscribeRateLimiter`)."""

    def __init__(self) -> None:
        self._rate = SubscribeRate()
        self._consumers: dict[tuple[str, str], Throttle] = {}

    def limit(self, rate: SubscribeRate) -> None:
        """Let another rate hold from now on."""
        if rate != self._rate:
            self._rate = rate
            self._consumers.clear()

    def check(self, consumer: Consumer, topic: str) -> None:
        """Note that a consumer comes.

        Raises:
            ServerRefusalError: it comes too often.
        """
        most, period_s = self._rate.subscribe_throttling_rate_per_consumer, self._rate.rate_period_in_second
        if most <= 0:
            return
        who = (consumer.peer.address.rpartition(":")[0], consumer.name)
        if who not in self._consumers and len(self._consumers) >= _MAX_CONSUMERS:
            self._consumers.clear()
        throttle, now_s = self._consumers.setdefault(who, Throttle(most, -1, period_s)), time.monotonic()
        if throttle.take(now_s, 1, 0) > 0:
            throttle.take(now_s, -1, 0)  # who is refused has not come
            raise ServerRefusalError(
                ServerError.TooManyRequests,
                f"Consumer {consumer.name!r} subscribes to {topic} more than {most} times in {period_s} s "
                "(subscribeRate): try again later.",
            )


def set_rate(throttle: Throttle, rate: DispatchRate) -> None:
    """Let a dispatch rate hold."""
    throttle.limit(
        rate.dispatch_throttling_rate_in_msg, rate.dispatch_throttling_rate_in_byte, rate.rate_period_in_second
    )


def check_limits(
    limits: SubscriptionLimits,
    topic: str,
    request: SubscribeRequest,
    *,
    consumers: int,
    each: int | None,
) -> None:
    """Refuse what would be one consumer too many; subscriptions are counted where a new one is committed.

    Args:
        limits: How many there may be.
        topic: The topic's name.
        request: What is asked for.
        consumers: Consumers of all subscriptions.
        each: Consumers of the subscription that is asked for; None if it is not open.

    Raises:
        ServerRefusalError: a limit is reached, or the type is not enabled.
    """
    if request.type not in limits.types:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"{topic} takes no {request.type} subscriptions (subscriptionTypesEnabled): use "
            f"{' or '.join(sorted(limits.types))}.",
        )
    for found, limit, of in (
        (consumers, limits.consumers, "consumers"),
        (each or 0, limits.consumers_each, f"consumers on subscription {request.name!r}"),
    ):
        if 0 < limit <= found:
            raise ServerRefusalError(ServerError.ConsumerBusy, f"{topic} has {found} {of} already, its limit.")
