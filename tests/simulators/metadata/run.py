"""One run: a few processes that use a table, and the promises that must hold."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import pyarrow as pa

from pulsar_on_spark.metadata.log import chain, cleaning, folding
from pulsar_on_spark.metadata.log.chain import ConflictError, OvertakenError, UnknownOutcomeError
from pulsar_on_spark.metadata.log.creation import create_table
from pulsar_on_spark.metadata.log.entry import Entry
from pulsar_on_spark.metadata.log.table_log import News, TableLog
from pulsar_on_spark.model.errors import MetadataError, ObjectsUnreachableError
from pulsar_on_spark.storage.objects.contract import Fetched
from tests.simulators.metadata.scheduler import STEPS, Scheduler
from tests.simulators.metadata.world import SimulatedLog, World

PROCESSES = 4
ROUNDS = 20
KEYS = ("a", "b", "c")
SCHEMA = pa.schema([pa.field("id", pa.string()), pa.field("seq", pa.int64()), pa.field("token", pa.string())])
ORDER = folding.Order(key=("id",), rank=("seq",))


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass
class Reports:
    """The outcomes that processes were told, by token."""

    done: set[str] = field(default_factory=set)
    not_done: set[str] = field(default_factory=set)
    unknown: int = 0
    actions: Counter[str] = field(default_factory=Counter)


class Process:
    """An owner of a handle: it commits, reads, folds and cleans up at random."""

    def __init__(self, world: World, reports: Reports, *, faults: float, at_once: int) -> None:
        self._world = world
        self._reports = reports
        self._log = TableLog(SimulatedLog(world, faults=faults, requests_at_once=at_once))
        self._rows: set[str] = set()

    def run(self) -> None:
        chance = self._world.scheduler.chance
        actions = (self._commit, self._commit, self._commit, self._refresh, self._fold, self._checkpoint, self._vacuum)
        for _ in range(ROUNDS):
            action = chance.choice(actions)
            try:
                action()
            except (ConflictError, OvertakenError, UnknownOutcomeError):
                pass
            except MetadataError as error:
                if "no reply" not in str(error) and "outcome of a commit" not in str(error):
                    raise ViolationError(f"{action.__name__}: {error}") from error
            else:
                self._reports.actions[action.__name__] += 1

    def _refresh(self) -> None:
        newest = len(self._world.history) - 1
        self._take(self._log.refresh())
        if self._log.version < newest:
            raise ViolationError(f"version {self._log.version} was read when {newest} was there")

    def _take(self, news: News) -> None:
        ids = {each for table in news.tables for each in table.column("id").to_pylist()}
        self._rows = ids if news.rebuild else self._rows | ids
        self._log.taken_in()
        expected = _rows_of(self._world.history[: self._log.version + 1])
        if self._rows != expected:
            raise ViolationError(f"version {self._log.version} has {self._rows ^ expected} more or less")

    def _commit(self) -> None:
        chance = self._world.scheduler.chance
        self._refresh()
        version = self._log.version
        token = self._log.new_token()
        keys = chance.sample(KEYS, chance.choice((0, 1, 1, 2)))
        moved = {key: (self._log.key_version(key) or 0) + 1 for key in keys}
        rows = pa.table({"id": [token], "seq": [version + 1], "token": [token]}, schema=SCHEMA)
        try:
            news = self._log.append(rows, moved, token)
        except (ConflictError, OvertakenError):
            self._reports.not_done.add(token)
            raise
        except UnknownOutcomeError as error:
            is_done = self._settle(token, version, error)
            (self._reports.done if is_done else self._reports.not_done).add(token)
        else:
            self._reports.done.add(token)
            if news is not None:
                self._take(news)

    def _settle(self, token: str, version: int, unknown: UnknownOutcomeError) -> bool:
        try:
            return self._log.settle(token, version, unknown)
        except MetadataError:
            self._reports.unknown += 1
            raise

    def _fold(self) -> None:
        self._refresh()
        self._log.fold(ORDER, None)

    def _checkpoint(self) -> None:
        self._refresh()
        self._log.checkpoint()

    def _vacuum(self) -> None:
        self._refresh()
        self._log.vacuum()


def run(seed: int, *, faults: bool = True, at_once: int = 1) -> tuple[World, Reports]:
    """Run with a seed.

    Args:
        seed: The seed.
        faults: True for requests that fail.
        at_once: The number of objects that a process begins to read at once.

    Raises:
        ViolationError: a promise was broken.
    """
    chance = random.Random(seed)
    scheduler = Scheduler(chance)
    world = World(scheduler)
    tokens = random.Random(seed)
    with (
        _small(),
        patch("pulsar_on_spark.metadata.log.entry.uuid.uuid4", lambda: uuid.UUID(int=tokens.getrandbits(128))),
        patch("pulsar_on_spark.metadata.log.reading_ahead.start_call", partial(_Call, chance)),
        patch("pulsar_on_spark.metadata.log.reading_ahead._free_requests", threading.Semaphore(1_000_000)),
    ):
        reports = Reports()
        rates = [chance.choice((0.0, 0.0, 0.05, 0.2)) if faults else 0.0 for _ in range(PROCESSES)]

        def process(rate: float) -> None:
            try:
                create_table(SimulatedLog(world), SCHEMA)
                Process(world, reports, faults=rate, at_once=at_once).run()
            except OvertakenError:
                pass

        scheduler.run([partial(process, rate) for rate in rates])
        world.deliver_all()
        if scheduler.steps < STEPS:
            _judge(world, reports)
    return world, reports


class _Call:
    """A request that is carried out when it is made or, by chance, when its answer is needed."""

    def __init__(self, chance: random.Random, call: Callable[[], Fetched | None], name: str) -> None:
        self._answered: Future[Fetched | None] = Future()
        self._call: Callable[[], Fetched | None] | None = call
        if chance.random() < 0.7:
            self._carry_out(call)

    def result(self) -> Fetched | None:
        if self._call is not None:
            self._carry_out(self._call)
        return self._answered.result()

    def _carry_out(self, call: Callable[[], Fetched | None]) -> None:
        self._call = None
        try:
            self._answered.set_result(call())
        except ObjectsUnreachableError as error:
            self._answered.set_exception(error)


@contextmanager
def _small() -> Iterator[None]:
    """Make everything happen often."""
    with (
        patch.object(cleaning, "KEEP_ENTRIES", 4),
        patch.object(cleaning, "KEEP_S", 0.0),
        patch.object(cleaning, "RETAIN_S", -1.0),
        patch.object(chain, "MAX_OVERTAKEN", 2),
        patch.object(folding, "LAG", 2),
        patch.object(folding, "WORTH_FILES", 3),
    ):
        yield


def _judge(world: World, reports: Reports) -> None:
    tokens = [entry.token for entry in world.history]
    if lost := reports.done - set(tokens):
        raise ViolationError(f"{lost} were reported as done, and are lost")
    if undead := reports.not_done & set(tokens):
        raise ViolationError(f"{undead} were reported as not done, and are there")
    if len(set(tokens)) != len(tokens):
        raise ViolationError("a commit happened twice")
    _judge_keys(world.history)
    _judge_end(world)


def _judge_keys(history: list[Entry]) -> None:
    versions: dict[str, int] = {}
    for entry in history:
        for key, version in entry.keys.items():
            if version != versions.get(key, 0) + 1:
                raise ViolationError(f"key {key} went from {versions.get(key)} to {version}")
            versions[key] = version


def _judge_end(world: World) -> None:
    scheduler = Scheduler(random.Random(0))
    world.scheduler = scheduler
    found: list[set[str]] = []

    def read() -> None:
        log = TableLog(SimulatedLog(world))
        found.append({each for table in log.refresh().tables for each in table.column("id").to_pylist()})

    scheduler.run([read])
    if found != [_rows_of(world.history)]:
        raise ViolationError(f"a new reader finds {found[0] ^ _rows_of(world.history)} more or less")


def _rows_of(history: list[Entry]) -> set[str]:
    """The rows of the commits in a history; each commit but a fold has one, with its token."""
    return {
        entry.token for entry in history if entry.added and not entry.removed and folding.FOLD_KEY not in entry.keys
    }
