"""Metrics of the store itself (`pulsarpy_`), and Pulsar's metrics of the broker process. Reads only `/proc`.

A journal's metrics have the label `quorum` (write/ack): a broker has one journal for each quorum of its topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pulsar_on_spark.broker.cluster.ownership import bundle_counts
from pulsar_on_spark.broker.observe.stored import StorageState
from pulsar_on_spark.broker.runtime.journals import Journal
from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.ledger.journal.meter import JournalMeter
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.storage.objects.meter import REQUESTS, Counts
from pulsar_on_spark.topic.catalog.brokers import registered_brokers

_CLUSTER: Final = ("cluster",)
_JOURNAL: Final = ("cluster", "quorum")
_PATH: Final = ("cluster", "path", "uri")
_STATES: Final = ("writable", "read-only", "draining", "lost")


def store_families(services: Services, broker_health: BrokerHealth) -> Iterator[Metric]:
    """Yield all families of the broker's metrics except those of topics, for a scrape by Prometheus."""
    cluster = services.settings.cluster_name
    state = services.stored.state
    yield from _gauges(cluster, _broker_gauges(services, broker_health, state))
    yield from _counters(cluster, services, broker_health)
    yield from _histograms(cluster, services, broker_health)
    yield from _of_journals(cluster, services.journals.all)
    yield from _of_paths(cluster, state)
    yield from _of_processes(cluster, services)
    yield _of_requests(cluster, services)
    if services.tls is not None:
        text = "Time until the broker's TLS certificate expires; negative once it has"
        yield from _gauges(cluster, [("pulsarpy_tls_certificate_expiry_seconds", text, services.tls.expires_in_s)])
    yield from _of_authentications(cluster, services)
    info = GaugeMetricFamily("pulsar_version_info", "The broker's version", labels=("cluster", "version"))
    info.add_metric((cluster, version("pulsar-on-spark")), 1)
    yield info
    yield from ProcessCollector(registry=None).collect()
    yield from PlatformCollector(registry=None).collect()


def _broker_gauges(
    services: Services, broker_health: BrokerHealth, state: StorageState
) -> Iterable[tuple[str, str, float | None]]:
    path, cache = services.path, services.reader.cache
    storage, now_s, view = state.storage, time.monotonic(), services.views.recent
    return (
        ("pulsar_active_connections", "Open connections of clients", len(broker_health.connections)),
        ("pulsar_ml_cache_used_size", "Bytes of entries in memory", cache.size_bytes),
        ("pulsar_ml_cache_entries", "Entries in memory", len(cache)),
        ("pulsarpy_publish_pending_bytes", "Bytes of entries that have no receipt yet", path.pending_bytes),
        ("pulsarpy_publish_held", "1 while nothing is read from clients with producers", not path.is_open),
        ("pulsarpy_sealing_over_limit", "1 while producers are held back because of sealing", path.is_lagging),
        ("pulsarpy_open_incarnations", "Journals that are open or not yet recovered", state.open_incarnations),
        ("pulsarpy_segment_files", "Segment files", state.files),
        ("pulsarpy_segment_files_offloaded", "Offloaded segment files", state.cold_files),
        ("pulsarpy_segment_copies_missing", "Missing copies of segment files", storage.missing_copies),
        ("pulsarpy_segment_copies_bad", "Damaged copies that are not restored yet", len(storage.bad_copies)),
        ("pulsarpy_segment_losses", "Losses found: data without a readable copy", len(storage.losses)),
        ("pulsarpy_audit_copies_missing", "Copies that the last audit did not find", storage.audit.missing),
        (
            "pulsarpy_audit_copies_lacking",
            "Copies for which the last audit found no storage path",
            storage.audit.lacking,
        ),
        ("pulsarpy_audit_files_unfinished", "Files that the last audit left to the next one", storage.audit.unfinished),
        (
            "pulsarpy_audit_time_seconds",
            "Time of the last audit, since 1970; 0 before the first",
            storage.audit.audited_ms / 1000,
        ),
        ("pulsarpy_history_messages", "Messages that builds have added to histories", state.history_rows),
        ("pulsarpy_history_bytes", "Size of the files that builds have added to histories", state.history_bytes),
        (
            "pulsarpy_history_waiting_bytes",
            "Bytes of sealed messages that policies want in histories, and that are not built yet",
            state.history_waiting_bytes,
        ),
        ("pulsarpy_brokers", "Brokers that run on the root", len(registered_brokers(view))),
        ("pulsarpy_owned_bundles", "Bundles of this broker", bundle_counts(view)[services.ownership.incarnation]),
        ("pulsarpy_root_size_bytes", "Size of the metadata's file system", state.root_total_bytes),
        (
            "pulsarpy_root_free_bytes",
            "Free space of the metadata's file system; below 1 MiB nothing is committed",
            state.root_free_bytes,
        ),
        ("pulsarpy_stored_look_age_seconds", "Age of the metrics of storage", now_s - state.at_s if state.at_s else -1),
    )


def _gauges(cluster: str, numbers: Iterable[tuple[str, str, float | None]]) -> Iterator[Metric]:
    for name, text, value in numbers:
        if value is None:
            continue
        gauge = GaugeMetricFamily(name, text, labels=_CLUSTER)
        gauge.add_metric((cluster,), value)
        yield gauge


def _counters(cluster: str, services: Services, broker_health: BrokerHealth) -> Iterator[Metric]:
    reader, housekeeping = services.reader, services.housekeeping
    created = broker_health.connections.created
    for name, text, value in (
        ("pulsar_connection_created_total_count", "Connections made", created),
        ("pulsar_connection_closed_total_count", "Connections ended", created - len(broker_health.connections)),
    ):
        # Pulsar's names without their final `_total`, which the library adds to a counter.
        gauge = GaugeMetricFamily(name, text, labels=_CLUSTER)
        gauge.add_metric((cluster,), value)
        yield gauge
    for name, text, value in (
        ("pulsarpy_cache_hits", "Entries for consumers that were in memory", reader.hits),
        ("pulsarpy_cache_misses", "Entries for consumers that had to be read", reader.misses),
        ("pulsarpy_housekeeping_passes", "Finished passes of housekeeping", housekeeping.passes),
        ("pulsarpy_housekeeping_failed", "Passes of housekeeping with a failed step", housekeeping.failed),
        ("pulsarpy_takeovers", "Journals of dead brokers that this broker recovered", services.takeover.recovered),
        ("pulsarpy_bundles_given", "Bundles that this broker gave up", services.handover.given),
        ("pulsarpy_bundles_shed", "Bundles that this broker gave up because of its load", services.balancer.shed),
        ("pulsarpy_lookups_waited", "Lookups that waited for a topic's broker", services.ownership.waited),
    ):
        counter = CounterMetricFamily(name, text, labels=_CLUSTER)
        counter.add_metric((cluster,), value)
        yield counter


def _of_authentications(cluster: str, services: Services) -> Iterator[Metric]:
    meter, of_provider = services.authentications, (*_CLUSTER, "provider_name", "auth_method")
    text = "Credentials that a provider accepted"
    success = CounterMetricFamily("pulsar_authentication_success", text, labels=of_provider)
    for (provider, method), times in meter.successes.items():
        success.add_metric((cluster, provider, method), times)
    failures = CounterMetricFamily(
        "pulsar_authentication_failures", "Clients that were not authenticated", labels=(*of_provider, "reason")
    )
    for (provider, method, failure), times in meter.failures.items():
        failures.add_metric((cluster, provider, method, failure), times)
    yield from (success, failures)


def _histograms(cluster: str, services: Services, broker_health: BrokerHealth) -> Iterator[Metric]:
    store = services.root.store
    kept: tuple[tuple[str, str, Latencies], ...] = (
        (
            "pulsarpy_publish_latency_seconds",
            "Time from journal to receipt of sampled entries",
            services.path.latencies,
        ),
        ("pulsarpy_topic_load_seconds", "Duration of topic loads", services.topics.loads),
        ("pulsarpy_event_loop_delay_seconds", "How late the event loop wakes tasks", broker_health.loop_delays),
    )
    for name, text, latencies in kept:
        yield _histogram(name, text, _CLUSTER, {(cluster,): latencies})
    yield _histogram(
        "pulsarpy_metadata_commit_seconds",
        "Commits to the metadata tables by this broker",
        ("cluster", "table"),
        {(cluster, "main"): store.commits, (cluster, "cursors"): store.cursor_commits},
    )


def _of_journals(cluster: str, journals: Sequence[Journal]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[Journal], float]], ...] = (
        ("pulsarpy_journal_waiting_bytes", "Bytes in the queue", lambda it: it.incarnation.journal.waiting_bytes),
        ("pulsarpy_journal_takes_entries", "1 while entries are accepted", lambda it: it.incarnation.can_append),
        ("pulsarpy_open_ledgers", "Open ledgers of this broker", lambda it: len(it.incarnation.ledgers)),
        ("pulsarpy_sealing_lag_bytes", "Bytes not sealed yet, one copy", lambda it: it.sealing.lag_bytes),
        ("pulsarpy_sealing_lag_limit_bytes", "Lag above which producers wait", lambda it: it.sealing.lag_limit_bytes),
        ("pulsarpy_sealing_silent_seconds", "Time since the sealer's last report", lambda it: it.sealing.silent_s),
    )
    counters: tuple[tuple[str, str, Callable[[JournalMeter], float]], ...] = (
        ("pulsarpy_journal_groups", "Groups of entries or cursor records; each is one frame", lambda it: it.groups),
        ("pulsarpy_journal_records", "Entries and cursor records in the groups", lambda it: it.records),
        ("pulsarpy_journal_bytes", "Bytes of the groups, one copy", lambda it: it.payload_bytes),
    )
    for name, text, number in gauges:
        gauge = GaugeMetricFamily(name, text, labels=_JOURNAL)
        for journal in journals:
            gauge.add_metric((cluster, journal.quorum), number(journal))
        yield gauge
    for name, text, count in counters:
        counter = CounterMetricFamily(name, text, labels=_JOURNAL)
        for journal in journals:
            counter.add_metric((cluster, journal.quorum), count(journal.incarnation.journal.meter))
        yield counter
    yield _histogram(
        "pulsarpy_journal_write_seconds",
        "Time from sending a group until an ack quorum has synced it",
        _JOURNAL,
        {(cluster, journal.quorum): journal.incarnation.journal.meter.writes for journal in journals},
    )
    yield _histogram(
        "pulsarpy_journal_sync_seconds",
        "Duration of fdatasync on a storage path",
        (*_JOURNAL, "path"),
        {
            (cluster, journal.quorum, str(path_id)): latencies
            for journal in journals
            for path_id, latencies in journal.incarnation.journal.sync_latencies().items()
        },
    )


def _histogram(name: str, text: str, labels: Sequence[str], kept: Mapping[tuple[str, ...], Latencies]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, latencies in kept.items():
        family.add_metric(key, latencies.buckets(), latencies.sum_s)
    return family


def _of_paths(cluster: str, seen: StorageState) -> Iterator[Metric]:
    state = GaugeMetricFamily("pulsarpy_path_state", "1 for the path's state", labels=(*_PATH, "state"))
    reachable = GaugeMetricFamily("pulsarpy_path_reachable", "1 while the right path is mounted", labels=_PATH)
    total = GaugeMetricFamily("pulsarpy_path_size_bytes", "Size of the path's file system", labels=_PATH)
    free = GaugeMetricFamily("pulsarpy_path_free_bytes", "Free bytes in the path's file system", labels=_PATH)
    for path in seen.storage.paths:
        key = (cluster, str(path.path_id), path.uri)
        for name in _STATES:
            state.add_metric((*key, name), path.state == name)
        reachable.add_metric(key, path.is_there)
        if path.total_bytes is not None and path.free_bytes is not None:
            total.add_metric(key, path.total_bytes)
            free.add_metric(key, path.free_bytes)
    yield from (state, reachable, total, free)


def _of_processes(cluster: str, services: Services) -> Iterator[Metric]:
    """Yield the memory and CPU time of the broker's processes.

    The label `quorum` is the journal's quorum for a sealing process, and empty for the others.
    """
    labels = ("cluster", "process", "quorum")
    processes: list[tuple[str, str, int | str | None]] = [("broker", "", "self"), ("reader", "", services.reader.pid)]
    processes += [("sealer", each.quorum, each.sealing.pid) for each in services.journals.all]
    memory = GaugeMetricFamily("pulsarpy_process_resident_memory_bytes", "Resident memory", labels=labels)
    cpu = CounterMetricFamily("pulsarpy_process_cpu_seconds", "User and system CPU time", labels=labels)
    for process, quorum, pid in processes:
        numbers = {} if pid is None else _process(pid)
        if numbers:
            memory.add_metric((cluster, process, quorum), numbers["process_resident_memory_bytes"])
            cpu.add_metric((cluster, process, quorum), numbers["process_cpu_seconds_total"])
    yield from (memory, cpu)


def _of_requests(cluster: str, services: Services) -> Metric:
    """Return the family of requests to object stores, by process; it has no samples on a local root."""
    labels = ("cluster", "process", "quorum", "operation", "result")
    counter = CounterMetricFamily("pulsarpy_object_requests", "Requests to object stores", labels=labels)
    processes: list[tuple[str, str, Counts]] = [
        ("broker", "", REQUESTS.counts()),
        ("reader", "", services.reader.requests),
    ]
    processes += [("sealer", each.quorum, each.sealing.requests) for each in services.journals.all]
    for process, quorum, counts in processes:
        for (operation, result), count in counts.items():
            counter.add_metric((cluster, process, quorum, operation, result), count)
    return counter


def _process(pid: int | str) -> dict[str, float]:
    """Return the values of a process's metrics from `/proc`, by metric name; empty if the process has ended."""
    families = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {sample.name: sample.value for family in families for sample in family.samples}
