"""The load of this broker in points, as a mean over its last measurements."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from statistics import fmean
from typing import Final

from pulsar_on_spark.broker.cluster.load import BrokerLoad, score, shares, work
from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.broker.observe.load_report import cpu_ms
from pulsar_on_spark.broker.observe.meters import Meters
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.model.latencies import Latencies

SMOOTHED: Final = 3
"""Number of last measurements whose mean is the reported score."""


class LoadMeter:
    """The meter of this broker's load. Call `measure` at even intervals, in the broker's event loop.

    Args:
        views: The views of the root's metadata.
        ownership: The owners of bundles.
        topics: The loaded topics.
        meters: The rates of the loaded topics.
        loop_delays: The measured delays of the event loop.
        clock: Returns the monotonic time, in seconds.
    """

    def __init__(
        self,
        views: Views,
        ownership: Ownership,
        topics: Iterable[BrokerTopic],
        meters: Meters,
        loop_delays: Latencies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._views = views
        self._ownership = ownership
        self._topics = topics
        self._meters = meters
        self._loop_delays = loop_delays
        self._clock = clock
        self._scores: deque[float] = deque(maxlen=SMOOTHED)
        self._bundles: Collection[str] = ()
        self._measured_s = clock()
        self._cpu_ms = cpu_ms()
        self._delays = (loop_delays.count, loop_delays.sum_s)

    def measure(self) -> BrokerLoad:
        """Measure and return the load: the mean score of the last measurements, divided among bundles by traffic."""
        view = self._views.recent
        works = {str(bundle): 0.0 for bundle in self._ownership.owned(view)}
        if works.keys() != self._bundles:
            self._bundles = works.keys()
            self._scores.clear()  # scores measured with other bundles do not apply to these
        self._scores.append(self._score())
        points = fmean(self._scores)
        for topic in self._topics:
            bundle = str(self._ownership.bundles(view, topic.name.namespace).bundle_of(topic.name))
            if bundle in works:
                works[bundle] += self._work(topic)
        return BrokerLoad(self._ownership.incarnation, points, shares(points, works))

    def _score(self) -> float:
        """Return the load since the last measurement, in points from 0 to 100."""
        now_s, used_ms = self._clock(), cpu_ms()
        delays = (self._loop_delays.count, self._loop_delays.sum_s)
        passed_s = max(now_s - self._measured_s, 1e-3)
        mean_delay_s = (delays[1] - self._delays[1]) / max(delays[0] - self._delays[0], 1)
        points = score((used_ms - self._cpu_ms) / (10 * passed_s), mean_delay_s)
        self._measured_s, self._cpu_ms, self._delays = now_s, used_ms, delays
        return points

    def _work(self, topic: BrokerTopic) -> float:
        rates = [self._meters.rates(topic.published), *map(self._meters.rates, topic.subscriptions.all)]
        return sum(work(each.messages, each.bytes) for each in rates)
