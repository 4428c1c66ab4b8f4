"""The rate meters of a broker's loaded topics, producers, subscriptions and consumers, sampled periodically."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

from pulsar_on_spark.broker.observe.rates import Counters, RateMeter, Rates
from pulsar_on_spark.broker.producing.producer import Published
from pulsar_on_spark.broker.subscriptions.consumer import Consumer
from pulsar_on_spark.broker.subscriptions.subscription import Subscription
from pulsar_on_spark.broker.topics.topic import BrokerTopic

PERIOD_S: Final = 10.0
"""Interval of samples, in seconds: rates cover the last 10 to 20 s. In Pulsar they cover the last whole minute
(`statsUpdateFrequencyInSecs`)."""

Metered = Published | Subscription | Consumer


class Meters:
    """The rate meters of loaded objects: a meter is created when its object is first seen, and removed with the object.

    Call all methods in the broker's event loop.

    Args:
        topics: The loaded topics, iterated for each sample.
        clock: Returns the monotonic time, in seconds.
    """

    def __init__(self, topics: Iterable[BrokerTopic], clock: Callable[[], float] = time.monotonic) -> None:
        self._topics = topics
        self._clock = clock
        self._meters: WeakKeyDictionary[Metered, RateMeter] = WeakKeyDictionary()
        self._sampled_s = clock()
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sampling."""
        self._sampling = asyncio.create_task(self._keep_sampling(), name="rate meters")

    async def stop(self) -> None:
        """Stop sampling."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    def rates(self, metered: Metered) -> Rates:
        """Return the current rates of a topic's, producer's, subscription's or consumer's messages and bytes.

        Each call also samples the object, which need not be loaded.
        """
        meter, now_s, counted = self._meter(metered), self._clock(), _counters(metered)
        meter.sample(now_s, counted)
        return meter.rates(now_s, counted)

    def sample(self) -> None:
        """Sample the counters of all loaded topics, producers, subscriptions and consumers."""
        for metered in _loaded(self._topics):
            self._meter(metered).sample(self._clock(), _counters(metered))
        self._sampled_s = self._clock()

    def _meter(self, metered: Metered) -> RateMeter:
        meter = self._meters.get(metered)
        if meter is None:
            # The object is newer than the last sample, and its counters began at 0.
            meter = self._meters[metered] = RateMeter(self._sampled_s, Counters(0, 0), PERIOD_S)
        return meter

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self.sample()


def _loaded(topics: Iterable[BrokerTopic]) -> Iterator[Metered]:
    for topic in topics:
        yield topic.published
        for producer in topic.producers.connected:
            yield producer.published
        for subscription in topic.subscriptions.all:
            yield subscription
            yield from subscription.consumers


def _counters(metered: Metered) -> Counters:
    if isinstance(metered, Published):
        return Counters(metered.messages, metered.bytes)
    return Counters(metered.messages_out, metered.bytes_out)
