"""The status of a root: storage paths, topics and subscriptions, from the metadata and the reports of readers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.metadata.records import (
    BundlesRecord,
    FileRecord,
    IncarnationRecord,
    LedgerRecord,
    SealRecord,
    SegmentRecord,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.ids import IncarnationId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.brokers import registered_brokers
from pulsar_on_spark.topic.catalog.bundles import bundles_of
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.repair.scrub import check_copy
from pulsar_on_spark.topic.maintenance.storage_status import CopyNumbers, copy_numbers
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.tail_view import UnsealedSegment
from pulsar_on_spark.topic.managed_ledger.sealing.journal_frames import JournalFrames
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import SubscriptionStatus, TopicSubscription


@dataclass(frozen=True, slots=True)
class IncarnationStatus:
    """A broker incarnation whose journal exists.

    Attributes:
        incarnation: The incarnation's id.
        state: OPEN, IN_RECOVERY or CLOSED.
        lease: renewed, stale (older than its duration) or missing; readers recover an OPEN incarnation without a lease.
        open_ledgers: Number of the incarnation's ledgers that are open.
        fragments: Number of the journal's fragments, each with its own set of journal files.
        journal_bytes: Bytes of the journal files that are not completely sealed, counting one copy.
        given_up_paths: Storage paths that an operator gave up so that the journal could be closed without them: entries
            may be missing.
        given_up_frames: Frames [first, end) that an operator gave up because no copy of them can be read.
    """

    incarnation: str
    state: str
    lease: str
    open_ledgers: int
    fragments: int
    journal_bytes: int
    given_up_paths: tuple[int, ...]
    given_up_frames: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A running broker of the root. A killed broker is listed until its recovery begins.

    Attributes:
        broker: The broker's id.
        service_url: Its URL for clients.
        state: `serving`, or `draining`.
        host: Its host.
        version: The version of this project that it runs.
        incarnation: The broker's incarnation, which owns the bundles.
        bundles: The bundles that it owns, as `tenant/namespace/range`.
        topics: Number of stored topics and partitions in these bundles.
    """

    broker: str
    service_url: str
    state: str
    host: str
    version: str
    incarnation: str
    bundles: tuple[str, ...]
    topics: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic with all its partitions.

    `partitions` is None for a topic without partitions, `schema` for a topic without a schema. `bytes` counts key and
    value bytes, as they were written. `messages` and `bytes` include unsealed messages as counted by their broker.
    `given_up` lists the entries that were in journal frames which an operator gave up, as (ledger, first entry, end);
    an unknown end equals the first entry.
    """

    name: str
    partitions: int | None
    schema: str | None
    messages: int
    bytes: int
    ledgers: int
    segments: int
    files: int
    given_up: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus(CopyNumbers):
    """Storage paths, copies and journals of a root at one version of its metadata.

    Attributes:
        incarnations: Broker incarnations, except those whose journals are completely sealed and removed.
    """

    incarnations: tuple[IncarnationStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootStatus(StorageStatus):
    """A root at one version of its metadata.

    Attributes:
        root: The root's path.
        cluster_id: The root's identity.
        quorum: Ensemble, write and ack quorum of new files.
        brokers: The brokers that run on it.
        topics: The topics, each with the sums of its partitions.
        subscriptions: The subscriptions of all topics, each with the sums of the topic's partitions.
        verified_copies: Number of copies that were read in full and are good; None if that was not requested.
    """

    root: RootPlace
    cluster_id: str
    quorum: str
    brokers: tuple[BrokerStatus, ...]
    topics: tuple[TopicStatus, ...]
    subscriptions: tuple[TopicSubscription, ...]
    verified_copies: int | None


def status(root: RootHandle, *, verify: bool = False, progress: Progress = silent) -> RootStatus:
    """Return the current status of the root.

    Args:
        root: The root.
        verify: True to read every copy of every live file in full first. Bad copies are reported; earlier reports about
            a copy that is good now are deleted.
        progress: Called as the verification proceeds.

    Raises:
        MetadataError: the metadata cannot be read.
        StorageError: the reports cannot be read.
    """
    durable = root.store.view(durable=True)
    view = view_with_journals(root, durable)
    files = catalog.live_files(durable)
    verified = _verify(root, durable, files, progress) if verify else None
    return RootStatus(
        **_storage(root, durable, files),
        root=root.place,
        cluster_id=root.cluster_id,
        quorum=str(root.quorum),
        brokers=_brokers(view),
        topics=tuple(_topic(view, topic) for topic in catalog.topics(view)),
        subscriptions=topic_subscriptions(root, view),
        verified_copies=verified,
    )


def storage_status(root: RootHandle) -> StorageStatus:
    """Return the status of storage paths, copies and journals (raises as `status`)."""
    view = root.store.view(durable=True)
    return StorageStatus(**_storage(root, view, catalog.live_files(view)))


def _storage(root: RootHandle, view: DurableView, files: Mapping[str, FileRecord]) -> dict[str, Any]:
    """Return the fields of `StorageStatus`."""
    numbers = copy_numbers(root, view, files)
    return {
        **{field_.name: getattr(numbers, field_.name) for field_ in fields(numbers)},
        "incarnations": tuple(_incarnation(root, view, record) for record in view.all(IncarnationRecord)),
    }


def view_with_journals(root: RootHandle, view: DurableView) -> View:
    """Return the view extended by the unsealed entries of all journals that can be read."""
    parts = [part for topic in catalog.topics(view) for part in catalog.parts(view, topic)]
    with closing(Tail(root, fail_on_data_loss=False)) as tail:
        return tail.read_view(parts, view)


def topic_subscriptions(root: RootHandle, view: View) -> tuple[TopicSubscription, ...]:
    """Return the subscriptions of all topics, each with the sums of the topic's partitions."""
    cursors = root.store.cursors()
    found = []
    for topic in catalog.topics(view):
        by_name: dict[str, list[SubscriptionStatus]] = defaultdict(list)
        for part in catalog.parts(view, topic):
            for record in view.all(SubscriptionRecord, part.topic_id):
                by_name[record.name].append(subscriptions.status(view, cursors, part, record))
        found += [TopicSubscription.of(topic.name, name, by_name[name]) for name in sorted(by_name)]
    return tuple(found)


def _brokers(view: View) -> tuple[BrokerStatus, ...]:
    divided = {each.namespace: bundles_of(view, each.namespace, 1) for each in view.all(BundlesRecord)}
    owned: dict[str | None, list[str]] = defaultdict(list)
    for bundles in divided.values():
        for bundle in bundles:
            owned[bundles.owner_of(bundle).incarnation].append(str(bundle))
    names = (TopicName.parse(topic.name) for topic in view.all(TopicRecord) if topic.partitions is None)
    places = ((divided[name.namespace], name) for name in names if name.namespace in divided)
    topics = Counter(bundles.owner_of(bundles.bundle_of(name)).incarnation for bundles, name in places)
    return tuple(
        BrokerStatus(
            broker=record.broker,
            service_url=record.default_listener.service_url or record.default_listener.service_url_tls,
            state=record.state,
            host=record.host,
            version=record.version,
            incarnation=record.incarnation,
            bundles=tuple(owned[record.incarnation]),
            topics=topics[record.incarnation],
        )
        for record in registered_brokers(view)
    )


def _topic(view: View, topic: TopicRecord) -> TopicStatus:
    parts = catalog.parts(view, topic)
    readable = [segment for part in parts for segment in view.all(SegmentRecord, part.topic_id)]
    segments = [segment for segment in readable if not isinstance(segment, UnsealedSegment)]
    ledgers = [ledger for part in parts for ledger in view.all(LedgerRecord, part.topic_id)]
    schema = registry.latest(view, topic)
    return TopicStatus(
        name=topic.name,
        partitions=topic.partitions,
        schema=None if schema is None else schema.type,
        messages=sum(segment.rows for segment in readable),
        bytes=sum(segment.bytes for segment in readable),
        ledgers=len(ledgers),
        segments=len(segments),
        files=len({segment.file_id for segment in segments}),
        given_up=tuple((ledger.ledger_id, lost.first, lost.end) for ledger in ledgers for lost in ledger.lost),
    )


def _incarnation(root: RootHandle, view: View, record: IncarnationRecord) -> IncarnationStatus:
    seal = view.get(SealRecord, record.incarnation) or SealRecord(incarnation=record.incarnation)
    frames = JournalFrames(IncarnationId(record.incarnation), root.current_journal_paths, seal.sealed_before)
    watcher = LeaseWatcher(root.broker_leases())
    watcher.observe_leases()
    stale = "stale" if watcher.looks_stale(record.incarnation, time.time()) else "renewed"
    return IncarnationStatus(
        incarnation=record.incarnation,
        state=record.state,
        lease=stale if watcher.has_lease(record.incarnation) else "missing",
        open_ledgers=sum(
            chain.is_open(view, ledger) for ledger in view.all(LedgerRecord) if ledger.incarnation == record.incarnation
        ),
        fragments=len(record.fragments),
        journal_bytes=frames.lag(log_record(record)).bytes,
        given_up_paths=record.given_up_paths,
        given_up_frames=tuple((each.begin, each.end) for each in seal.given_up),
    )


def _verify(root: RootHandle, view: View, files: Mapping[str, FileRecord], progress: Progress) -> int:
    """Read every copy of the files. Return the number of good copies."""
    paths = root.storage_paths(view)
    copies = [
        (file, paths[PathId(path_id)]) for file in files.values() for path_id in file.copies if PathId(path_id) in paths
    ]
    good = 0
    for number, (file, path) in enumerate(copies):
        progress("verify", number, len(copies))
        good += check_copy(root, file, path).is_good
    progress("verify", len(copies), len(copies))
    return good
