"""Dispatch rates that are relative to the publish rate: the limit is the rate itself plus the published messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pulsar_on_spark.broker.producing.producer import Published
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.topic.catalog.policies.policies import DispatchRate


class PublishCredit:
    """The credit that published messages give a topic's subscriptions whose dispatch rates are relative.

    Args:
        published: The counters of messages published to the topic.
    """

    def __init__(self, published: Published) -> None:
        self._published = published
        self._granted = (0, 0)
        self._of_topic = self._of_each = False
        self.is_relative = False
        """True if any of the rates is relative, so that `grant` has an effect."""

    def update_rates(self, of_topic: DispatchRate, of_each: DispatchRate) -> None:
        """Apply new dispatch rates, which may be relative to the publish rate.

        Args:
            of_topic: The rate of all subscriptions together.
            of_each: The rate of each subscription.
        """
        self._of_topic, self._of_each = of_topic.relative_to_publish_rate, of_each.relative_to_publish_rate
        if not self.is_relative:
            self._granted = self._published.messages, self._published.bytes
        self.is_relative = self._of_topic or self._of_each

    def grant(self, subscriptions: Sequence[Subscription]) -> None:
        """Raise the limits of the topic's open subscriptions by the messages published since the last call."""
        was = self._granted
        self._granted = self._published.messages, self._published.bytes
        if not subscriptions:
            return
        new = self._granted[0] - was[0], self._granted[1] - was[1]
        now_s = asyncio.get_running_loop().time()
        if self._of_topic:
            subscriptions[0].deliveries.shared_rate.give(now_s, *new)
        if self._of_each:
            for subscription in subscriptions:
                subscription.deliveries.rate.give(now_s, *new)
