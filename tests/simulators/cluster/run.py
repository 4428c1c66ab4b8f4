"""One run: brokers, clients, and everything that goes wrong, under one seed; then all heals, and must end well."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from unittest.mock import patch

from pulsar_on_spark.broker.cluster import ownership
from pulsar_on_spark.metadata import features
from pulsar_on_spark.metadata.records import BrokerRecord, NamespaceRecord, RootRecord, TopicRecord
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import bundles
from pulsar_on_spark.topic.managed_ledger.incarnation import dead_brokers
from tests.simulators.cluster.broker import SHARED_HOST, SimulatedBroker, SimulatedTopic, recover
from tests.simulators.cluster.oracle import ViolationError, bundles_in, effective_owner
from tests.simulators.cluster.scheduler import Life
from tests.simulators.cluster.world import World

NAMESPACE: Final = "public/default"
TOPICS: Final = 6
BROKERS: Final = 3
CHAOS_S: Final = 40.0
"""The length of the time in which things go wrong."""
SERVED_S: Final = 45.0
"""The longest time until all topics are served once all is well: a lease, a retry of a recovery, and a lookup."""
UNLOADED_S: Final = 5.0
"""The longest time until a broker has unloaded the topics of bundles that it has lost."""
CONNECT_S: Final = 1.0
"""The longest time that a client needs to connect to a topic's owner."""
MAX_BUNDLES: Final = 12
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WEIGHTS: Final = {
    "publish": 30,
    "kill": 2,
    "stop": 1,
    "start": 6,
    "pause": 3,
    "pause_all": 1,
    "unload": 6,
    "split": 3,
    "outage": 1,
    "full": 1,
    "cut": 1,
}


class Run:
    """A world with its actions.

    Args:
        seed: The same seed gives the same run, in one process.

    Attributes:
        events: Counts of what has happened, which show whether runs reach what they are for.
    """

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.events: Counter[str] = Counter()
        self._chance = self.world.chance
        self._scheduler = self.world.scheduler
        self._names = [TopicName.parse(f"t{number}") for number in range(TOPICS)]
        self.world.metadata.unknown = self._chance.choice((0.0, 0.03, 0.2))
        self._has_shared_host = self._chance.random() < 0.5
        self._starts = 0
        weights = _WEIGHTS.items()
        self._actions: list[Callable[[], None]] = [
            action for name, count in weights for action in [getattr(self, f"_{name}")] * count
        ]

    def go(self) -> None:
        """Run to the end.

        Raises:
            ViolationError: an invariant does not hold.
        """
        with _quiet(self._chance):
            try:
                self._begin()
                while self._scheduler.now_s < CHAOS_S:
                    self._scheduler.run(self._scheduler.now_s + self._chance.expovariate(2.0))
                    self._chance.choice(self._actions)()
                self._heal()
                self._settle()
            finally:
                for broker in self._living():
                    broker.kill()

    def _begin(self) -> None:
        self.world.metadata.put(
            [
                RootRecord.model_validate(
                    {
                        "cluster_id": "c",
                        "format_version": 2,
                        "created_at": NOW,
                        "features": {features.BUNDLES: "write"},
                        "quorum": "1/1/1",
                    }
                ),
                NamespaceRecord(namespace=NAMESPACE),
                *(TopicRecord(name=name.full, topic_id=name.local, created_at=NOW) for name in self._names),
            ]
        )
        for number in range(BROKERS):
            self._start_broker(number)

    def _start_broker(self, number: int) -> None:
        self._starts += 1
        host = SHARED_HOST if self._has_shared_host else f"host-{number}-{self._starts}"
        broker = SimulatedBroker(self.world, host, number, self._starts)
        self.world.brokers_by_name[broker.name] = broker

    # -- who there is --------------------------------------------------------------------------------------------------

    def _living(self) -> list[SimulatedBroker]:
        return [broker for broker in self.world.brokers_by_name.values() if broker.loop.life is not Life.DEAD]

    def _serving(self) -> list[SimulatedBroker]:
        return [broker for broker in self._living() if broker.serves and broker.loop.life is Life.RUNS]

    # -- what happens --------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        self._look_up(self._chance.choice(self._names))

    def _look_up(self, name: TopicName) -> None:
        """Let a client look a topic up at any broker, and publish an entry at the owner."""
        asked = self._serving()
        if not asked:
            return

        def found(lookup: asyncio.Task[BrokerRecord]) -> None:
            if lookup.exception() is None:
                owner = self.world.brokers_by_name[lookup.result().incarnation]
                connected_s = self._scheduler.now_s + self._chance.uniform(0, CONNECT_S)
                self._scheduler.at(connected_s, lambda: connect(owner))

        def connect(owner: SimulatedBroker) -> None:
            if owner.serves and owner.loop.life is Life.RUNS:
                owner.loop.spawn(_publish_at(owner, name), published)

        def published(publishing: asyncio.Task[None]) -> None:
            error = publishing.exception()
            self.events["published" if error is None else type(error).__name__] += 1

        broker = self._chance.choice(asked)
        broker.loop.spawn(broker.ownership.find_owner(name), found)

    def _kill(self) -> None:
        if living := self._living():
            self.events["killed"] += 1
            self._chance.choice(living).kill()

    def _stop(self) -> None:
        if len(serving := self._serving()) > 1:
            self.events["stopped"] += 1
            broker = self._chance.choice(serving)
            broker.loop.spawn(broker.stop(), _ignore)

    def _start(self) -> None:
        numbers = set(range(BROKERS)) - {broker.number for broker in self._living()}
        if numbers:
            self._start_broker(self._chance.choice(sorted(numbers)))

    def _pause(self) -> None:
        if living := self._living():
            self.events["paused"] += 1
            broker = self._chance.choice(living)
            broker.loop.pause()
            self._scheduler.at(self._scheduler.now_s + self._chance.uniform(0.5, 20), broker.loop.wake)

    def _pause_all(self) -> None:
        """Suspend the machine: all that is due meanwhile happens when it wakes."""
        self.events["paused all"] += 1
        begin_s = self._scheduler.now_s
        self._scheduler.now_s += self._chance.uniform(4, 60)
        self.world.note_deaf(begin_s, self._scheduler.now_s)

    def _unload(self) -> None:
        if serving := self._serving():
            self.events["unloaded"] += 1
            broker, next_owner = self._chance.choice(serving), self._chance.choice(serving)
            owned = broker.ownership.owned(broker.views.recent, NAMESPACE)
            given = self._chance.sample(owned, min(len(owned), self._chance.choice((1, 1, 2, 8))))
            to = next_owner.name if next_owner is not broker and self._chance.random() < 0.5 else None
            broker.loop.spawn(broker.handover.unload(given, to), _ignore)

    def _split(self) -> None:
        serving = self._serving()
        there = bundles_in(self.world.metadata.view, NAMESPACE)
        if not serving or len(there.owners) >= MAX_BUNDLES:
            return
        self.events["split"] += 1
        broker, bundle = self._chance.choice(serving), self._chance.choice(list(there))
        middle = (bundle.lower + bundle.upper) // 2

        async def split() -> None:
            await asyncio.to_thread(
                broker.root.store.commit, lambda view: bundles.decide_split(view, bundle, [middle], 4)
            )

        broker.loop.spawn(split(), _ignore)

    def _outage(self) -> None:
        """Let reads and writes of all brokers fail for a while."""
        self._out("reads_fail")

    def _full(self) -> None:
        """Let writes of all brokers fail for a while: the disk is full."""
        self._out("writes_fail")

    def _out(self, kind: str) -> None:
        metadata = self.world.metadata
        if metadata.reads_fail or metadata.writes_fail:
            return
        self.events[kind] += 1
        length_s = self._chance.uniform(1, 15)
        self.world.note_deaf(self._scheduler.now_s, self._scheduler.now_s + length_s)
        setattr(metadata, kind, True)
        self._scheduler.at(self._scheduler.now_s + length_s, lambda: setattr(metadata, kind, False))

    def _cut(self) -> None:
        """Cut one broker off."""
        if living := self._living():
            self.events["cut off"] += 1
            store = self._chance.choice(living).root.store
            store.is_cut = True
            end_s = self._scheduler.now_s + self._chance.uniform(1, 15)
            self._scheduler.at(end_s, lambda: setattr(store, "is_cut", False))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        metadata = self.world.metadata
        self.world.is_chaos = False
        self.world.note_healed(self._scheduler.now_s)
        metadata.reads_fail = metadata.writes_fail = False
        metadata.unknown = 0.0
        for broker in self._living():
            broker.root.store.is_cut = False
            broker.loop.wake()

    def _settle(self) -> None:
        """I20: every bundle that is looked up is served in bounded steps."""
        end_s = self._scheduler.now_s + SERVED_S
        while (missing := self._unserved()) and self._scheduler.now_s < end_s:
            if not self._living():
                self._start_broker(0)
            for name in missing:
                self._look_up(name)
            self._scheduler.run(self._scheduler.now_s + 1.0)
        self._scheduler.run(self._scheduler.now_s + UNLOADED_S)
        if missing:
            raise ViolationError(f"{', '.join(map(str, missing))} are not served after {SERVED_S} s without a fault")
        for broker in self._serving():
            for topic in broker.topics:
                if self._owner(topic.name) not in (None, broker.name):
                    raise ViolationError(f"{broker.name} keeps {topic.name}, which another broker owns")

    def _unserved(self) -> list[TopicName]:
        """Return the topics without an open ledger at the effective owner of their bundles."""
        return [name for name in self._names if not self._is_served(name)]

    def _is_served(self, name: TopicName) -> bool:
        owner = self._owner(name)
        if owner is None:
            return False
        broker = self.world.brokers_by_name[owner]
        is_loaded = broker.serves and any(topic.name == name for topic in broker.topics)
        return is_loaded and name.local in broker.incarnation.ledgers

    def _owner(self, name: TopicName) -> str | None:
        """Return the effective owner of a topic's bundle."""
        return effective_owner(self.world.metadata.view, bundles_in(self.world.metadata.view, NAMESPACE), name)


async def _publish_at(broker: SimulatedBroker, name: TopicName) -> None:
    topic = await broker.topics.get(name)
    assert isinstance(topic, SimulatedTopic)
    await topic.publish()


def _ignore(ended: asyncio.Task[None]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None and not isinstance(error, PulsarpyError):
        raise error


@contextmanager
def _quiet(chance: random.Random) -> Iterator[None]:
    """Let the seed decide all, replace what needs disks, and turn logged defects into violations."""
    logger = logging.getLogger("pulsar_on_spark")
    handler, level = _Defects(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        with (
            patch.object(ownership, "Random", lambda: chance),
            patch.object(dead_brokers, "random", chance),
            patch.object(dead_brokers, "recover_incarnation", recover),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    if handler.defect is not None:
        raise ViolationError(handler.defect)


class _Defects(logging.Handler):
    defect: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.defect = self.defect or logging.Formatter().format(record)
