"""The row of a consumer in the table of its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentSubscription
from pulsar_on_spark.broker.topics.topics import AnyTopic


class Subscribed(NamedTuple):
    """A consumer of a connection.

    Attributes:
        topic: The consumer's topic.
        subscription: The consumer's subscription.
        consumer: The consumer.
        leave: Removes the consumer from its subscription.
    """

    topic: AnyTopic
    subscription: Subscription | NonPersistentSubscription
    consumer: Consumer
    leave: Callable[[], None]
