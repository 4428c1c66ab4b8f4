"""A root with two topics that share files, a broker, the model of their messages, and what readers get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from pulsar_on_spark.datasource import history
from pulsar_on_spark.history_table import merging, retention, table
from pulsar_on_spark.history_table.places import find_table
from pulsar_on_spark.history_table.recorded import end_of_messages, recorded_progress
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion
from pulsar_on_spark.metadata.log import cleaning
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import (
    CopiesUnreachableError,
    DataLossError,
    HistoryTableError,
    StorageError,
)
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS, effective_policies
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from tests.kit.running_incarnation import RunningIncarnation
from tests.simulators.tiering.oracle import WAIT_HOURS, Found, Message, Part, ViolationError
from tests.simulators.tiering.reading import TableReader, topic_rows

T: Final = TopicName.parse("t")
U: Final = TopicName.parse("u")
DISKS: Final = 4
COLD: Final = 2
TICK_MS: Final = 120_000
"""Time between the publish times of two writes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The source of a frame, and by partition the numbers of the messages that the frame must show."""

    source: history._Source
    expected: Mapping[str, Sequence[int]]


class Scene:
    """The root, its broker, and the model.

    Args:
        folder: The place of the root and of its storage paths.
        partitions: The number of partitions of the topic with a history; None for a topic without partitions.

    Attributes:
        root: The handle of the process that takes the step.
        parts: The model of each topic or partition.
        away: The cold path that cannot be reached; None if all can be.
    """

    def __init__(self, folder: Path, partitions: int | None) -> None:
        self._folder = folder
        self._patch = pytest.MonkeyPatch()
        self._make_thresholds_small()
        disks = [folder / f"disk{number}" for number in range(DISKS)]
        self.root = Root.create(folder / "root", disks, Quorum(2, 2, 1))
        self.root.create_topic("t", partitions)
        self.root.create_topic("u")
        for number in range(COLD):
            storage_paths.add(self.root, self._cold(number), role="cold")
        self._other = Root.open(folder / "root")
        self.parts = {part.name: Part() for topic in (T, U) for part in self._parts(topic)}
        self.away: int | None = None
        self._is_replacing = False
        self._start_broker()
        self._table_reader = TableReader()
        self._plans: list[Plan] = []
        self._steps: set[str] = set()
        self._cut_ms: int | None = None
        self._hours = 0
        self._written = 0
        self._schema = 0
        self._published_ms = int(time.time() * 1000) - 30 * 86_400_000

    def _make_thresholds_small(self) -> None:
        for owner, name, value in (
            (merging, "WORTH_FILES", 2),
            (merge, "WORTH_TINY_FILES", 3),
            (table, "_CHECKPOINT_ENTRIES", 4),
            (table, "_KEEP_LOG_S", -1.0),
            (cleaning, "KEEP_ENTRIES", 1),
            (retention, "KEEP_REMOVED_S", -1.0),
            (retention, "ABANDONED_S", -1.0),
        ):
            self._patch.setattr(owner, name, value)

    def close(self) -> None:
        """End the broker."""
        self._sealer.close()
        self._broker.kill()
        self._patch.undo()

    @contextmanager
    def other_process(self) -> Iterator[None]:
        """Let another process take the steps."""
        self.root, self._other = self._other, self.root
        try:
            yield
        finally:
            self.root, self._other = self._other, self.root

    # --- what the steps share ---

    def _start_broker(self) -> None:
        self._brokers_root = Root.open(self._folder / "root")
        self._broker = RunningIncarnation(self._brokers_root)
        self._sealer = Sealer(self._brokers_root, self._broker.incarnation.id, is_live=True)

    def _cold(self, number: int) -> Path:
        return self._folder / f"cold{number}"

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=self._hours)

    def _topic(self, name: TopicName) -> TopicRecord:
        return catalog.require_topic(self.root.store.view(), name)

    def _parts(self, name: TopicName) -> list[TopicPart]:
        return list(catalog.parts(self.root.store.view(), self._topic(name)))

    def _part(self, number: int) -> TopicPart:
        parts = self._parts(T)
        return parts[number % len(parts)]

    def _table(self) -> HistoryTable | None:
        found = find_table(self.root, self.root.store.view(), self._topic(T))
        return None if found is None or not found.exists() else found

    def _deltas(self) -> DeltaTable | None:
        """The table as delta-rs sees it."""
        found = self._table()
        return None if found is None else DeltaTable(str(found.place))

    def _made(self, part: str, count: int) -> list[Message]:
        """Add messages to the model."""
        self._published_ms += TICK_MS
        made = []
        for _ in range(count):
            made.append(Message(self._written, self._published_ms, has_note=self._schema > 1))
            self._written += 1
        self.parts[part].written += made
        return made

    def _require_none(self, problems: Sequence[str]) -> None:
        if problems and self.away is None:
            raise HistoryTableError(problems[0])

    # --- readers ---

    def plan(self, meanwhile: Callable[[], None] | None) -> None:
        """Plan a frame; another process may take a step after the metadata were read, before the table is."""
        if self._steps:
            return  # the model is not up to date, because a cold path is away
        version = HistoryTable.version

        def late(table: HistoryTable) -> TableVersion:
            patch.setattr(HistoryTable, "version", version)
            if meanwhile is not None:
                meanwhile()
            return version(table)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HistoryTable, "version", late)
            source = history._source(self.root.place, T)
        expected = {part.name: self.parts[part.name].visible() for part in self._parts(T)}
        self._plans.append(Plan(source, expected))

    def use(self, number: int) -> None:
        """Read by an earlier plan: all of its messages, or an error."""
        if not self._plans:
            return
        plan = self._plans.pop(number % len(self._plans))
        with suppress(DataLossError, StorageError, FileNotFoundError):
            for name, found in self._read(plan.source, history._source(self.root.place, T).view).items():
                if [row.number for row in found.history] != plan.expected[name]:
                    raise ViolationError(
                        f"a frame has {[row.number for row in found.history]} instead of {plan.expected[name]}"
                    )

    def check(self) -> None:
        """Hold what readers get against the model, unless a cold path is away that they need."""
        try:
            sources = [history._source(self.root.place, topic) for topic in (T, U)]
            read = [self._read(source, source.view) for source in sources]
        except CopiesUnreachableError:
            if self.away is None:
                raise
            return
        for source, rows in zip(sources, read, strict=True):
            policies = effective_policies(source.view, T, DEFAULTS)
            for part in source.parts:
                model = self.parts[part.name]
                waits = self._hours - model.advanced_hours < WAIT_HOURS
                is_held = part.name != U.full and policies.history.enabled and waits and "unwant" not in self._steps
                model.check(rows[part.name], self._steps, self._cut_ms, is_held)
                generation = recorded_progress(source.view, part.topic_id).generation
                if generation != model.generation:
                    model.generation, model.advanced_hours = generation, self._hours
        self._steps.clear()
        self._cut_ms = None

    def _read(self, source: history._Source, view: View) -> dict[str, Found]:
        in_table = self._table_reader.rows(source)
        found = {}
        for part in source.parts:
            range_ = source.ranges.get(part.name)
            behind = [] if range_ is None else topic_rows(self.root, view, part, range_.start, range_.end)
            end = end_of_messages(view, part.topic_id)
            whole = topic_rows(self.root, view, part, EARLIEST, end)
            rows = in_table[part.partition]
            found[part.name] = Found(whole, rows, [*rows, *behind])
        return found
