"""What a connection knows of a consumer of its."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.non_persistent import NonPersistentSubscription
from pulsar_on_spark.broker.topics.topics import AnyTopic


class Subscribed(NamedTuple):
    """A consumer of a connection, where it is, and what takes it from there."""

    topic: AnyTopic
    subscription: Subscription | NonPersistentSubscription
    consumer: Consumer
    leave: Callable[[], None]
