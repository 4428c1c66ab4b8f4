"""The load of a broker, with the fields and units of Pulsar's `LocalBrokerData`.

Fields that this broker does not measure are left out: the bandwidth of network cards, and the bundles that were gained
and lost since an earlier report.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Mapping
from typing import Final

from pydantic import Field

from pulsar_on_spark.broker.observe.meters import Meters
from pulsar_on_spark.broker.observe.models import Stats
from pulsar_on_spark.broker.observe.rates import Counters, RateMeter
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.metadata.records import BrokerRecord
from pulsar_on_spark.topic.catalog.bundles import Bundle

PERIOD_S: Final = 10.0
"""Minimum time between two samples of the CPU time, in seconds; the CPU's use is measured since an earlier sample."""
_MIB: Final = 1 << 20


class ResourceUsage(Stats):
    """The use of a resource and its limit, both in percent of one core or in MiB."""

    usage: float
    limit: float


class BundleStats(Stats):
    """The load of a bundle's loaded topics (Pulsar's `NamespaceBundleStats`); throughputs are bytes per second."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    consumer_count: int = 0
    producer_count: int = 0
    topics: int = 0


class LoadReport(Stats):
    """The load of a broker. `directMemory` is the cache of entries; times are milliseconds since 1970."""

    load_report_type: str = "LocalBrokerData"
    web_service_url: str
    web_service_url_tls: str
    pulsar_service_url: str
    pulsar_service_url_tls: str
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True
    cpu: ResourceUsage
    memory: ResourceUsage
    direct_memory: ResourceUsage
    msg_throughput_in: float
    msg_throughput_out: float
    msg_rate_in: float
    msg_rate_out: float
    last_update: int
    last_stats: Mapping[str, BundleStats]
    num_topics: int
    num_bundles: int
    num_consumers: int
    num_producers: int
    bundles: list[str]
    broker_version_string: str
    start_timestamp: int
    protocols: dict[str, str] = Field(default_factory=dict)


class LoadReporter:
    """Reporter of the load of this process's broker."""

    def __init__(self) -> None:
        self._cpu = RateMeter(time.monotonic(), Counters(cpu_ms(), 0), PERIOD_S)

    def report(
        self,
        broker: BrokerRecord,
        owned: Collection[Bundle],
        topics: Collection[BrokerTopic],
        meters: Meters,
        cache: tuple[int, int],
    ) -> LoadReport:
        """Return the broker's current load.

        Args:
            broker: The registration of the broker.
            owned: The bundles that the broker owns.
            topics: The loaded topics.
            meters: The rates of the loaded topics.
            cache: The size of the entry cache, and the limit of this size, in bytes.
        """
        stats = {
            str(bundle): _of_topics([topic for topic in topics if topic.name in bundle], meters) for bundle in owned
        }
        urls, total = broker.default_listener, _of_topics(topics, meters)
        return LoadReport(
            web_service_url=urls.web_url,
            web_service_url_tls=urls.web_url_tls,
            pulsar_service_url=urls.service_url,
            pulsar_service_url_tls=urls.service_url_tls,
            cpu=self._cpu_usage(),
            memory=_memory_usage(),
            direct_memory=ResourceUsage(usage=cache[0] / _MIB, limit=cache[1] / _MIB),
            msg_throughput_in=total.msg_throughput_in,
            msg_throughput_out=total.msg_throughput_out,
            msg_rate_in=total.msg_rate_in,
            msg_rate_out=total.msg_rate_out,
            last_update=time.time_ns() // 1_000_000,
            last_stats=stats,
            num_topics=total.topics,
            num_bundles=len(owned),
            num_consumers=total.consumer_count,
            num_producers=total.producer_count,
            bundles=list(stats),
            broker_version_string=broker.version,
            start_timestamp=int(broker.started_at.timestamp() * 1000),
        )

    def _cpu_usage(self) -> ResourceUsage:
        now_s, used = time.monotonic(), Counters(cpu_ms(), 0)
        self._cpu.sample(now_s, used)
        percent = self._cpu.rates(now_s, used).messages / 10
        return ResourceUsage(usage=percent, limit=100.0 * (os.cpu_count() or 1))


def _of_topics(topics: Collection[BrokerTopic], meters: Meters) -> BundleStats:
    subscriptions = [subscription for topic in topics for subscription in topic.subscriptions.all]
    rates_in = [meters.rates(topic.published) for topic in topics]
    rates_out = [meters.rates(subscription) for subscription in subscriptions]
    return BundleStats(
        msg_rate_in=sum(rates.messages for rates in rates_in),
        msg_throughput_in=sum(rates.bytes for rates in rates_in),
        msg_rate_out=sum(rates.messages for rates in rates_out),
        msg_throughput_out=sum(rates.bytes for rates in rates_out),
        consumer_count=sum(len(subscription.consumers) for subscription in subscriptions),
        producer_count=sum(len(topic.producers.connected) for topic in topics),
        topics=len(topics),
    )


def cpu_ms() -> int:
    """Return the CPU time of this process and of its ended child processes, in milliseconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return int(1000 * sum(each.ru_utime + each.ru_stime for each in used))


def _memory_usage() -> ResourceUsage:
    """Return the resident memory of this process, with the host's memory as its limit, in MiB."""
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1])
    return ResourceUsage(usage=resident * page / _MIB, limit=os.sysconf("SC_PHYS_PAGES") * page / _MIB)
