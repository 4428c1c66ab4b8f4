"""A simulated broker: the real parts of `broker.cluster` and the real table of topics, over a simulated journal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pulsar_on_spark.broker.cluster.handover import Handover
from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.broker.cluster.registry import Registry
from pulsar_on_spark.broker.cluster.takeover import Takeover
from pulsar_on_spark.broker.runtime.commits import GroupedCommits
from pulsar_on_spark.broker.runtime.journals import LEASE_S, Journals
from pulsar_on_spark.broker.runtime.repeating import attempt, every
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.ledger.journal.log import LogRecord, LogState
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IncarnationRecord, LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import JournalUndecidedError, PulsarpyError, TopicOwnedElsewhereError
from pulsar_on_spark.model.ids import IncarnationId, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.security.listeners import Listener, Listeners
from pulsar_on_spark.storage.leases.contract import lease_name
from pulsar_on_spark.topic.catalog.bundles import is_over
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import Lease, longest_pause_s, with_renewal
from pulsar_on_spark.topic.managed_ledger.chain.chain import is_open
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import POLL_S, Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.ledger_commits import LedgerCommits
from tests.simulators.cluster.metadata import SimulatedLeases, SimulatedStore
from tests.simulators.cluster.scheduler import Life, ProcessLoop

if TYPE_CHECKING:
    from tests.simulators.cluster.world import World

SHARED_HOST: Final = "host"
"""The host of all brokers of a root on disks."""
SETTINGS: Final = BrokerSettings()
VIEW_EVERY_S: Final = 1.0
ACKNOWLEDGED_S: Final = 0.5
"""The longest time until an entry is acknowledged."""


class SimulatedRoot:
    """A root as one process sees it: `RootHandle`, as far as brokers use it.

    Attributes:
        place: A folder, or another place on roots whose brokers have hosts of their own.
        process: The broker's name.
        store: The metadata.
    """

    def __init__(self, world: World, process: str, place: Path | str) -> None:
        self.world = world
        self.place = place
        self.process = process
        self.store = SimulatedStore(world.metadata, process)

    def broker_leases(self) -> SimulatedLeases:
        """Return the leases of brokers."""
        return SimulatedLeases(self.world.metadata, self.store)


def recover(root: SimulatedRoot, incarnation: IncarnationId) -> LogRecord:
    """Recover a journal in two commits, and maybe only the first of them."""
    root.world.oracle.on_recovery(root.process, incarnation)
    _commit_state(root.store, incarnation, "IN_RECOVERY")
    if root.world.is_chaos and root.world.chance.random() < 0.2:
        raise JournalUndecidedError("A path does not answer.")
    _commit_state(root.store, incarnation, "CLOSED")
    return LogRecord(LogState.CLOSED, 1, 1, (), -1)


def _commit_state(store: SimulatedStore, incarnation: str, state: str) -> None:
    def decide(view: View) -> Change | None:
        record = view.get(IncarnationRecord, incarnation)
        if record is not None and record.state in (state, "CLOSED"):
            return None
        log, seal = keys.incarnation_log(incarnation), keys.incarnation_seal(incarnation)
        new = IncarnationRecord.model_validate({"incarnation": incarnation, "state": state})
        return Change(puts=[new], keys={log: None, seal: None})

    store.commit(decide)


class SimulatedIncarnation(Incarnation):
    """An incarnation with the real ledgers, and without a journal: entries are acknowledged after a while."""

    def __init__(self, root: SimulatedRoot, name: str, broker: SimulatedBroker) -> None:
        self.id = IncarnationId(name)
        self._root = root
        self._store = root.store
        self._broker = broker
        self._leases = root.broker_leases()
        self._written = Lease(name, name, (), 1, LEASE_S)
        self._commits = LedgerCommits(cast(Any, root.store), self.id)
        self._ledgers = {}
        self._retired = []
        self._asked_to_look = asyncio.Event()
        self._reason = None
        self._polled_now_s = self._now_s
        self._renewals_s: tuple[float, ...] = (self._now_s,)
        self.silent_until_s = float("-inf")

    @property
    def _now_s(self) -> float:
        return self._root.world.scheduler.now_s

    def lease_pause_s(self, since_s: float) -> float:
        """Return the longest time without a renewal of the lease that has ended after `since_s`, or not yet."""
        return longest_pause_s(self._renewals_s, since_s, self._now_s)

    @property
    def was_silent(self) -> bool:
        """True if others could have heard it, and have not for long enough that they may believe it to be dead."""
        world = self._root.world
        return world.heard_at(self._now_s) - world.heard_at(self._renewals_s[-1]) >= LEASE_S / 2

    async def begin(self) -> None:
        """Write the lease, commit the record, and begin to look at the metadata."""
        await asyncio.to_thread(self._write_lease)
        await asyncio.to_thread(_commit_state, self._store, self.id, "OPEN")
        self._tasks = [
            asyncio.create_task(every(POLL_S, self._look_at_record, "no metadata")),
            asyncio.create_task(every(LEASE_S / 3, self._renew, "no lease")),
        ]

    async def stop(self) -> None:
        """Close all ledgers and the log, and release the lease."""
        for task in self._tasks:
            task.cancel()
        await self.close_ledgers(list(self._ledgers))
        await asyncio.to_thread(_commit_state, self._store, self.id, "CLOSED")
        self._root.world.metadata.leases.pop(lease_name(self.id), None)

    def publish(self, topic_id: TopicId) -> None:
        """Append an entry to an open ledger."""
        ledger = self._ledgers[topic_id]
        ledger.next += 1
        ledger.outstanding += 1
        delay_s = self._root.world.chance.uniform(0.001, ACKNOWLEDGED_S)
        asyncio.get_running_loop().call_later(delay_s, ledger.count_outcomes, 1)

    async def _look_at_record(self) -> None:
        view = await asyncio.to_thread(self._store.view)
        record = view.get(IncarnationRecord, self.id)
        if record is None or record.state != "OPEN":
            self._reason = "it was taken over"
            self._broker.kill()
            return
        self._polled_now_s = self._now_s
        await self._close_retired()

    async def _renew(self) -> None:
        if self._now_s - self._polled_now_s < LEASE_S:
            await asyncio.to_thread(self._write_lease)

    def _write_lease(self) -> None:
        self._written = replace(self._written, counter=self._written.counter + 1)
        self._leases.renew(lease_name(self.id), self._written.encode())
        if self.was_silent:
            self.silent_until_s = self._now_s
        self._renewals_s = with_renewal(self._renewals_s, self._now_s)


class SimulatedTopic:
    """A topic: `BrokerTopic`, as far as the table of topics and the hand-over use it."""

    def __init__(self, name: TopicName, part: TopicPart, broker: SimulatedBroker) -> None:
        self.name = name
        self.part = part
        self.topic_id = TopicId(part.topic_id)
        self.incarnation = broker.incarnation
        self._world = broker.world
        self._opening: asyncio.Task[None] | None = None
        self._is_held = False

    async def load(self, view: View) -> None:
        """Refuse to load a topic with a ledger open elsewhere, and close what an earlier load left open."""
        self._world.oracle.on_load(self.incarnation.id, view, self.name)
        ledgers = [ledger for ledger in view.all(LedgerRecord, self.topic_id) if is_open(view, ledger)]
        if any(ledger.incarnation != self.incarnation.id for ledger in ledgers):
            raise TopicOwnedElsewhereError(f"A ledger of {self.name} is open elsewhere: try again.")
        await self.incarnation.wait_until_drained(self.topic_id)
        await self.incarnation.close_ledgers([])

    async def publish(self) -> None:
        """Publish an entry, for which a ledger is opened if there is none."""
        while not self._is_held:
            if self.topic_id in self.incarnation.ledgers:
                self.incarnation.publish(self.topic_id)
                return
            if self._opening is None:
                self._opening = asyncio.create_task(self._open_ledger())
            await asyncio.shield(self._opening)
        raise TopicOwnedElsewhereError(f"Topic {self.name} is unloaded: look it up again.")

    async def _open_ledger(self) -> None:
        try:
            problems = await self.incarnation.open_ledgers([self.part])
        finally:
            self._opening = None
        if self.topic_id in problems:
            raise problems[self.topic_id]

    async def unload(self) -> None:
        """Close the topic after its entries are acknowledged, then close its ledger; now or later."""
        self._is_held = True
        try:
            if self._opening is not None:
                await asyncio.wait([self._opening])
            if self._world.is_chaos and self._world.chance.random() < 0.2:
                raise JournalUndecidedError("Entries are not acknowledged yet.")
            await self.incarnation.wait_until_drained(self.topic_id)
            await self.incarnation.close_ledgers([self.topic_id])
        except PulsarpyError:
            self.incarnation.retire_ledger(self.topic_id)

    async def close(self) -> None:
        """Disconnect all clients."""
        self._is_held = True


@dataclass(frozen=True)
class _First:
    incarnation: SimulatedIncarnation


class SimulatedJournals:
    """The journals of a broker: one."""

    def __init__(self, incarnation: SimulatedIncarnation) -> None:
        self.first = _First(incarnation)

    def __iter__(self) -> Iterator[SimulatedIncarnation]:
        return iter([self.first.incarnation])


@dataclass(frozen=True)
class DeadLock:
    """The lock file of a dead broker."""

    world: World
    key: tuple[str, str]

    def remove(self, incarnations: Collection[IncarnationId]) -> None:
        """Remove the file unless another broker has locked it since."""
        holder = self.world.locks.get(self.key)
        if holder is not None and holder.loop.life is Life.DEAD and holder.incarnation_ids == list(incarnations):
            del self.world.locks[self.key]


class SimulatedLock:
    """The lock of a broker: it proves the death of others on its host, if hosts have locks at all."""

    def __init__(self, world: World, host: str, broker: str) -> None:
        self._world = world
        self._key = (host, broker)

    def dead_others(self) -> dict[DeadLock, list[IncarnationId]]:
        """Return the locks of dead brokers of this host, with their incarnations."""
        return {
            DeadLock(self._world, key): holder.incarnation_ids
            for key, holder in self._world.locks.items()
            if key != self._key and key[0] == self._key[0] and holder.loop.life is Life.DEAD
        }


class SimulatedBroker:
    """A process of a broker, which starts at once.

    Attributes:
        name: Its name and that of its incarnation, unlike all others.
        serves: True once it is registered.
    """

    def __init__(self, world: World, host: str, number: int, start: int) -> None:
        self.world = world
        self.number = number
        self.name = f"b{number}-{start}"
        self.serves = False
        self.incarnation_ids: list[IncarnationId] = []
        self.root = SimulatedRoot(world, self.name, Path("root") if host == SHARED_HOST else "s3://root")
        self.loop = ProcessLoop(world.scheduler, self._note_version)
        url = f"pulsar://b{number}:6650"
        self._listeners = Listeners(Listener(url, "", f"http://b{number}:8080", ""), {})
        self._lock = SimulatedLock(world, host, str(number))
        former = world.locks.get((host, str(number)))
        self._former = [] if former is None else former.incarnation_ids
        world.locks[host, str(number)] = self
        self.loop.spawn(self._start(), self._ended)

    def _note_version(self) -> Any:
        version = self.world.metadata.view.version

        def begin() -> None:
            self.root.store.asked_at = version

        return begin

    def kill(self) -> None:
        """End the process as by SIGKILL."""
        self.serves = False
        self.loop.kill()

    def _ended(self, start: asyncio.Task[None]) -> None:
        if start.exception() is not None:
            self.kill()

    async def _start(self) -> None:
        """Start the parts in the order of `Broker`."""
        root = cast(Any, self.root)
        for former in self._former:
            if not is_over(await asyncio.to_thread(self.root.store.view), former):
                await asyncio.to_thread(recover, self.root, former)
        self.incarnation = SimulatedIncarnation(self.root, self.name, self)
        self.incarnation_ids = [self.incarnation.id]
        await self.incarnation.begin()
        journals = cast(Journals, SimulatedJournals(self.incarnation))
        self.views = Views(root)
        await self.views.view()
        registry = Registry(root.store, self.incarnation.id, self._listeners)
        self.takeover = Takeover(
            root, self.views, journals, cast(Any, self._lock), registry, lambda: None, self.loop.time
        )
        self.ownership = Ownership(
            root.store, self.views, registry, 4, self.takeover.is_dead, self.takeover.may_be_dead, dict
        )
        self.topics = Topics(
            root,
            self.views,
            GroupedCommits(root.store),
            SETTINGS,
            self._load,
            Throttle(),
            self.ownership.require_served,
            self.ownership.is_elsewhere,
        )
        self.handover = Handover(root.store, self.views, self.topics, journals, self.ownership, registry, 30.0)
        self._registry = registry
        self._viewing = asyncio.create_task(every(VIEW_EVERY_S, self._read_view, "no metadata"))
        await registry.register()
        self.takeover.start()
        self.handover.start()
        self.serves = True

    async def _read_view(self) -> None:
        await self.views.view()

    def _load(self, name: TopicName, record: TopicRecord) -> BrokerTopic:
        return cast(BrokerTopic, SimulatedTopic(name, TopicPart(record.name, record.topic_id, -1), self))

    async def stop(self) -> None:
        """Stop the parts in the order of `Broker`."""
        self.serves = False
        try:
            async with asyncio.timeout(60.0):
                await attempt(self.handover.drain, "no drain")
                await self.topics.close()
                await attempt(self._registry.deregister, "no deregistration")
                await self.incarnation.stop()
        except (PulsarpyError, TimeoutError):
            pass
        self.kill()
