"""A broker from its start to its end: the order in which its parts start, drain and stop.

start   root and its lock -> recover the last broker's journal -> incarnation -> sealing process -> servers
drain   give bundles to other brokers, refuse new clients, acknowledge published entries, close topics and ledgers
end     a broker whose incarnation was taken over, or whose journal failed, disconnects its clients and exits
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

from pulsar_on_spark.broker.background.housekeeping import Housekeeping
from pulsar_on_spark.broker.background.lifecycle import Lifecycle
from pulsar_on_spark.broker.background.offload import Offloads
from pulsar_on_spark.broker.background.recheck import Recheck
from pulsar_on_spark.broker.background.surroundings import Surroundings
from pulsar_on_spark.broker.cluster.balancer import Balancer
from pulsar_on_spark.broker.cluster.handover import Handover
from pulsar_on_spark.broker.cluster.load_reports import LoadReports
from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.broker.cluster.registry import Registry, broker_id
from pulsar_on_spark.broker.cluster.takeover import Takeover
from pulsar_on_spark.broker.connection.broker_state import BrokerState
from pulsar_on_spark.broker.connection.connections import Connections
from pulsar_on_spark.broker.cursors.keeper import CursorKeeper
from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.handlers import make_handlers
from pulsar_on_spark.broker.observe.load_meter import LoadMeter
from pulsar_on_spark.broker.observe.overview import Overview
from pulsar_on_spark.broker.observe.stored import Stored
from pulsar_on_spark.broker.producing.dedup import DedupLimits
from pulsar_on_spark.broker.producing.producers import ProducerNames, Producers
from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.broker.producing.topic_dedup import SNAPSHOT_EVERY_S, DedupStore
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.reading.follower import ChainFollower
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.access import Access, access_of
from pulsar_on_spark.broker.runtime.audit import audit_of
from pulsar_on_spark.broker.runtime.authentication import authentication_of
from pulsar_on_spark.broker.runtime.broker_lock import Lock
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.ports import PortNumbers, Ports, bound_ports, check_reach, listeners_of
from pulsar_on_spark.broker.runtime.repeating import attempt, every
from pulsar_on_spark.broker.runtime.serving_alone import journal_limits, lock_broker, sealing_policy
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.slow_refusals import SlowRefusals
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.runtime.tls import BrokerTls, server_tls
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.services.broker_health import BrokerHealth
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.services.settings_changes import follow_log_level, renew
from pulsar_on_spark.broker.services.settings_follower import SettingsFollower
from pulsar_on_spark.broker.topics.schemas import ClientSchemas
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topic_parts import TopicParts
from pulsar_on_spark.broker.topics.topic_policies import (
    broker_publish_rate,
    default_policies,
    dispatch_limits,
    roll_over,
)
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.broker.web.server import WebServer
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, NotARootError, PulsarpyError
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.protocol.frames import FRAME_PADDING_BYTES
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.audit_log import SUMMARY_EVERY_S, Audit
from pulsar_on_spark.security.listeners import Listeners
from pulsar_on_spark.security.meter import AuthenticationMeter
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_brokers import recover_incarnation

log = logging.getLogger(__name__)

_MIB = 1 << 20
_INCOMPLETE_FRAMES_FACTOR = 4
"""Limit of the bytes of incomplete frames in memory, as a multiple of `max_message_publish_buffer_size_mb`."""


class Broker:
    """A broker that serves one root; create it with `Broker.start`.

    Attributes:
        root: The open root that the broker serves.
        listeners: The URLs by which clients reach the broker.
    """

    def __init__(
        self,
        root: Root,
        lock: Lock,
        settings: BrokerSettings,
        listeners: Listeners,
        tls: BrokerTls | None,
        access: Callable[[Views], Access],
        authentications: AuthenticationMeter,
        audit: Audit,
    ) -> None:
        self.root = root
        self.listeners = listeners
        self._tls = tls
        self._make_access = access
        self._authentications = authentications
        self._audit = audit
        self._lock = lock
        self._running = AsyncExitStack()
        """Stops the started parts, in reverse order."""
        self._running.callback(lock.release)
        self._running.callback(audit.close)
        self._settings = self._settings_in_force = settings
        buffer_bytes = settings.max_message_publish_buffer_size_mb * _MIB
        self._connections = Connections(_INCOMPLETE_FRAMES_FACTOR * buffer_bytes)
        self._cache = EntryCache(settings.managed_ledger_cache_size_mb * _MIB)
        self._path = PublishPath(self._cache, buffer_bytes, self._connections.update_holds)
        self._keeper: CursorKeeper | None = None
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, place: RootPlace, settings: BrokerSettings, quorum: Quorum | None = None) -> Broker:
        """Open or create the root, recover the journal of a dead broker, and serve clients.

        Args:
            place: The root's directory, or its URL on an object store.
            settings: The broker's settings.
            quorum: The journal's quorum; None for the root's default. If the root is created, this is its default.

        Raises:
            PulsarpyError: the broker cannot serve the root; the message names the reason.
            OSError: the operating system refused a file or a port.
        """
        check_reach(settings)
        files = server_tls(settings)
        tls = None if files is None else BrokerTls(files, settings.tls_cert_refresh_check_duration_sec)
        authentication = authentication_of(settings)
        access = access_of(settings, authentication)
        meter = AuthenticationMeter() if authentication is None else authentication.meter
        audit = audit_of(settings)
        with bound_ports(settings) as ports:
            listeners = listeners_of(settings, ports)
            root = await asyncio.to_thread(_open, place, quorum, settings)
            lock = await asyncio.to_thread(lock_broker, root, broker_id(listeners))
            broker = cls(root, lock, settings, listeners, tls, access, meter, audit)
            async with AsyncExitStack() as undo:
                undo.push_async_callback(broker._running.aclose)
                broker._settings_in_force = await asyncio.to_thread(renew, root.store, settings)
                follow_log_level(settings, broker._settings_in_force)
                await broker._open_journal(quorum)
                undo.push_async_callback(broker._close_journal)
                await broker._start()
                await broker._serve(ports.dup())
                undo.pop_all()
        return broker

    @property
    def service_url(self) -> str:
        """The URL of the default listener for Pulsar's clients, such as `pulsar://localhost:6650`."""
        return self.listeners.default.any_service_url

    @property
    def web_url(self) -> str:
        """The URL of the default listener for HTTP, such as `http://localhost:8080`."""
        return self.listeners.default.any_web_url

    async def _open_journal(self, quorum: Quorum | None) -> None:
        for former in chain(self._lock.former, *self._lock.dead_others().values()):
            await asyncio.to_thread(_recover, self.root, former)
        self._journals = Journals(
            self.root,
            self._path,
            self._on_incarnation_ended,
            sealing_policy(self.root, self._settings),
            roll_over(self._settings),
            journal_limits(self._settings),
            lambda incarnations: self._lock.note(incarnations, self.service_url),
        )
        await self._journals.start(quorum or self.root.quorum)
        self._incarnation = self._journals.first.incarnation

    async def _close_journal(self) -> None:
        """Close the journal after a later step of the start failed; nothing has been published."""
        try:
            await self._journals.stop()
        except PulsarpyError as error:
            log.warning("The journal could not be closed, the next broker recovers it: %s", error)

    async def _start(self) -> None:
        ends = self._running
        self._path.start(self._journals)
        await self._journals.start_sealing()
        ends.push_async_callback(self._journals.stop_sealing)
        self._follower = ChainFollower(self.root, self._journals)
        self._follower.start()
        ends.push_async_callback(self._follower.stop)
        commits = GroupedCommits(self.root.store)
        self._keeper = CursorKeeper(self.root, self._incarnation, commits, self._on_cursor_lost)
        # A frame has metadata beside the largest message.
        largest_bytes = self._settings.max_message_size + FRAME_PADDING_BYTES
        self._reader = EntryReader(self.root, self._cache, max_message_size_bytes=largest_bytes)
        self._reader.start()
        ends.push_async_callback(self._reader.close)
        self._views = Views(self.root)
        await self._views.view()
        self._access = self._make_access(self._views)
        self._dedups = DedupStore(self.root, self._incarnation.id, self._reader, self._dedup_limits())
        self._topic_parts = TopicParts(
            store=self.root.store,
            journals=self._journals,
            path=self._path,
            follower=self._follower,
            keeper=self._keeper,
            reader=self._reader,
            dispatch=dispatch_limits(self._settings_in_force),
            dedups=self._dedups,
            defaults=default_policies(self._settings),
            publish_rate=Throttle(*broker_publish_rate(self._settings_in_force)),
        )
        self._registry = Registry(self.root.store, self._incarnation.id, self.listeners)
        self._takeover = Takeover(
            self.root,
            self._views,
            self._journals,
            self._lock,
            self._registry,
            lambda: self._housekeeping.on_journal_recovered(),
        )
        self._load_reports = LoadReports(self.root.broker_loads(), self._incarnation.id)
        self._ownership = Ownership(
            self.root.store,
            self._views,
            self._registry,
            self._settings.default_number_of_namespace_bundles,
            self._takeover.is_dead,
            self._takeover.may_be_dead,
            lambda: self._load_reports.known,
        )
        self._housekeeping = Housekeeping(
            self.root.place,
            self._settings.maintain_interval_s,
            self._settings.lost_path_recovery_delay_s,
            default_policies(self._settings),
            self._ownership.leads,
        )
        self._housekeeping.start()
        ends.push_async_callback(self._housekeeping.stop)
        self._offloads = Offloads(self.root, default_policies(self._settings))
        ends.push_async_callback(self._offloads.stop)
        self._topics = Topics(
            self.root,
            self._views,
            commits,
            self._settings,
            self._load,
            self._topic_parts.publish_rate,
            self._ownership.require_served,
            self._ownership.is_elsewhere,
        )
        drain_s = self._settings.broker_shutdown_timeout_ms / 2000
        self._handover = Handover(
            self.root.store,
            self._views,
            self._topics,
            self._journals,
            self._ownership,
            self._registry,
            drain_s,
        )
        self._topics.compactions.start()
        ends.push_async_callback(self._topics.compactions.stop)
        self._surroundings = Surroundings(self.root, self._views, self._journals, self._path)
        self._surroundings.start()
        ends.push_async_callback(self._surroundings.stop)
        self._watch = TopicWatch(self._views, self._topics)
        self._watch.start()
        ends.push_async_callback(self._watch.stop)
        if self._settings.authorization_enabled:
            recheck = Recheck(self._views, self._topics, self._watch, self._access)
            recheck.start()
            ends.push_async_callback(recheck.stop)
        self._saving = asyncio.create_task(
            every(SNAPSHOT_EVERY_S, self._save_dedups, "Deduplication state could not be saved, trying again soon")
        )
        ends.push_async_callback(self._stop_saving)

    async def _serve(self, ports: Ports) -> None:
        self._overview = Overview(self.root, self._topics, self.service_url)
        self._overview.start()
        self._running.push_async_callback(self._overview.stop)
        self._lifecycle = Lifecycle(
            self.root,
            self._views,
            self._topics,
            self._reader,
            self._overview,
            self._settings,
            self._ownership.leads,
        )
        self._lifecycle.start()
        self._running.push_async_callback(self._lifecycle.stop)
        self._stored = Stored(self.root, self._views)
        self._stored.start()
        self._running.push_async_callback(self._stored.stop)
        self._running.push_async_callback(self._stop_summaries)
        self._summaries = asyncio.create_task(
            every(SUMMARY_EVERY_S, self._audit.summarize, "The audit could not be written, trying again soon")
        )
        self._balancer = Balancer(
            self._views,
            self._ownership,
            self._handover,
            self._load_reports,
            lambda: services.settings.load_balancer_shedding_enabled,
        )
        services = self._services(ports.numbers)
        settings_follower = SettingsFollower(services)
        settings_follower.start()
        self._running.push_async_callback(settings_follower.stop)
        broker_health = BrokerHealth(services, self._connections)
        broker_health.start()
        self._running.push_async_callback(broker_health.stop)
        self._web = WebServer(services, broker_health)
        self._running.push_async_callback(self._web.stop)
        if self._tls is not None:
            self._tls.start()
            self._running.push_async_callback(self._tls.stop)
        await self._web.start(ports)
        state = BrokerState(
            current_settings=lambda: services.settings,
            accepts_entries=lambda: self._path.is_open,
            use_tls_port=ports.numbers.use_binary_tls,
        )
        await self._connections.serve(ports, self._tls, state, make_handlers(services))
        await self._registry.register()
        self._takeover.start()
        self._running.push_async_callback(self._takeover.stop)
        self._handover.start()
        self._running.push_async_callback(self._handover.stop)
        load = LoadMeter(self._views, self._ownership, self._topics, self._overview.meters, broker_health.loop_delays)
        self._load_reports.start(load.measure, self._ownership.has_others)
        self._running.push_async_callback(self._load_reports.stop)
        services.balancer.start()
        self._running.push_async_callback(services.balancer.stop)

    def _services(self, ports: PortNumbers) -> Services:
        return Services(
            root=self.root,
            given=self._settings,
            settings=self._settings_in_force,
            ports=ports,
            listeners=self.listeners,
            tls=self._tls,
            access=self._access,
            authentications=self._authentications,
            audit=self._audit,
            slow_refusals=SlowRefusals(self._audit),
            views=self._views,
            ownership=self._ownership,
            handover=self._handover,
            balancer=self._balancer,
            takeover=self._takeover,
            topics=self._topics,
            topic_parts=self._topic_parts,
            schemas=ClientSchemas(self.root.store, self._views, self._settings),
            reader=self._reader,
            path=self._path,
            journals=self._journals,
            names=ProducerNames(self._settings.cluster_name, self._incarnation.id),
            overview=self._overview,
            watch=self._watch,
            stored=self._stored,
            housekeeping=self._housekeeping,
            offloads=self._offloads,
        )

    def _load(self, name: TopicName, record: TopicRecord) -> BrokerTopic:
        part = TopicPart(record.name, record.topic_id, name.partition_index if record.partition_of else -1)
        producers = Producers(name.full, record.topic_epoch)
        return BrokerTopic(name, part, producers, self._topic_parts)

    def _dedup_limits(self) -> DedupLimits:
        settings = self._settings
        return DedupLimits(
            max_producers=settings.broker_deduplication_max_number_of_producers,
            inactivity_ms=settings.broker_deduplication_producer_inactivity_timeout_minutes * 60_000,
            snapshot_entries=settings.broker_deduplication_entries_interval,
        )

    def _on_cursor_lost(self, cursor: OpenCursor) -> None:
        """Disconnect the consumers of a cursor that this broker no longer owns."""
        for topic in self._topics:
            if topic.topic_id == cursor.part.topic_id:
                topic.subscriptions.on_cursor_lost(cursor)

    def _on_incarnation_ended(self, reason: str) -> None:
        """Disconnect all clients, because this incarnation can acknowledge no more entries.

        The clients then look up the new owner of their topics.
        """
        self._connections.close()
        if self._keeper is not None:
            self._keeper.on_incarnation_ended(reason)
        if not self._over.done():
            self._over.set_result(reason)

    def reopen_audit(self) -> None:
        """Reopen the audit log at its path, after a rotation has renamed the file."""
        self._audit.reopen()

    async def wait(self) -> str:
        """Wait until the broker's incarnation has ended unexpectedly, and return the reason, for operators."""
        return await asyncio.shield(self._over)

    async def stop(self) -> None:
        """Drain the broker: give up bundles, acknowledge published entries, save cursors, and close the journals.

        Failures, and a drain that takes longer than `broker_shutdown_timeout_ms`, are only logged: the next owner
        recovers the journals.
        """
        try:
            async with asyncio.timeout(self._settings.broker_shutdown_timeout_ms / 1000):
                await attempt(self._handover.drain, "The topics could not be given to other brokers")
                await self._web.stop()
                await self._connections.stop_listening()
                await self._path.drain_entries()
                await self._topics.close()
                self._connections.close()
                assert self._keeper is not None, "the broker has started"
                await self._keeper.stop()
                await attempt(self._registry.deregister, "The registration could not be removed, another broker will")
                await self._journals.stop()
        except (PulsarpyError, TimeoutError) as error:
            # Everything acknowledged is durable; the next owner recovers the journal.
            log.warning("The broker could not stop cleanly: %s", error or "it took too long")
        finally:
            await self._running.aclose()

    async def abandon(self) -> None:
        """Stop without draining, after the incarnation has ended: published entries can no longer be acknowledged."""
        await self._web.stop()
        await self._connections.stop_listening()
        self._connections.close()
        await self._running.aclose()

    async def _stop_summaries(self) -> None:
        self._summaries.cancel()
        await asyncio.gather(self._summaries, return_exceptions=True)

    async def _stop_saving(self) -> None:
        self._saving.cancel()
        await asyncio.gather(self._saving, return_exceptions=True)

    async def _save_dedups(self) -> None:
        await self._dedups.save_due((topic.part, topic.dedup) for topic in self._topics if topic.dedup is not None)


def _open(place: RootPlace, quorum: Quorum | None, settings: BrokerSettings) -> Root:
    """Open the root, or create it.

    Args:
        place: The root's directory, or its URL on an object store.
        quorum: The default quorum of a root that is created; None for the quorum of new roots.
        settings: The broker's settings, which have the permissions of the root's files.

    Raises:
        NotARootError: there is no root at an object store's URL; a broker creates a root only in a directory.
        InvalidArgumentError: the root has other permissions than the settings require.
    """
    file_mode = int(settings.root_file_mode, 8)
    if not Root.is_occupied(place):
        if not isinstance(place, Path):
            raise NotARootError(
                f"There is no root at {place}: create it with `pulsarpy init {place}`. For faster receipts, keep the "
                "journal on this host's disks: `pulsarpy storage add DIRECTORY --role journal`."
            )
        return Root.create(place, quorum=quorum, file_mode=file_mode)
    root = Root.shared(place)
    if not isinstance(place, Path):
        return root
    mode = permissions.mode_of(place)
    if "root_file_mode" in settings.model_fields_set and mode != permissions.folder_mode(file_mode):
        raise InvalidArgumentError(
            f"The root {place} has the permissions {mode:04o}, and root_file_mode is {settings.root_file_mode}: change "
            "the permissions of the root and its contents as docs/operations.md says, or leave the setting out."
        )
    if mode & 0o007:
        log.warning(
            "Every user of this host can access the root %s (permissions %04o): chmod -R o= %s", place, mode, place
        )
    return root


def _recover(root: Root, incarnation: IncarnationId) -> None:
    """Recover and close the journal of a dead broker. A failure is logged: topics open in the journal stay unserved."""
    if is_over(root.store.view(), incarnation):
        return
    log.warning(
        "The last broker did not stop cleanly: its journal %s is being recovered.",
        incarnation,
        extra={"incarnation": incarnation},
    )
    try:
        recover_incarnation(root, incarnation)
    except (PulsarpyError, OSError) as error:
        log.error(
            "The journal %s could not be recovered, its open topics cannot be served: %s",
            incarnation,
            error,
            extra={"incarnation": incarnation},
        )
