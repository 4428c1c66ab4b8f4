"""The rules by which a topic, its files and its history fit together, each broken, for the simulator to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pulsar_on_spark.datasource import history
from pulsar_on_spark.history_table import build as building
from pulsar_on_spark.history_table import plan, retention
from pulsar_on_spark.history_table.boundary import boundary_of
from pulsar_on_spark.history_table.plan import Append, Progress, Step, next_step
from pulsar_on_spark.history_table.retention import AgedFile
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion
from pulsar_on_spark.metadata.log import chain
from pulsar_on_spark.metadata.log.entry import Content, DataFile, Entry
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.rewrite import Piece
from pulsar_on_spark.topic.maintenance.offload import offloading
from pulsar_on_spark.topic.maintenance.retention import holders


@dataclass(frozen=True)
class Mutant:
    """A broken rule: `owner.attribute` is replaced. `kinds` are the steps that meet it."""

    name: str
    owner: Any
    attribute: str
    broken: Any
    kinds: Sequence[str]


_append = building._PartBuild._append
_aged = retention._aged
_check_conflict = chain._check_conflict


def _metadata_say_where_the_table_ends(main: Progress, table: Progress) -> Position:
    boundary_of(main, table)
    return main.to


def _builds_again(main: Progress, table: Progress, trimmed: Position, sealed: Position) -> Step:
    is_ahead = table.generation == main.generation + 1
    return next_step(main, main if is_ahead else table, trimmed, sealed)


def _records_first(self: Any, view: DurableView, table: HistoryTable, version: TableVersion, step: Append) -> Progress:
    commit = table.commit

    def record_and_commit(*arguments: Any, **named: Any) -> None:
        keys = arguments[1]
        generation, ledger, entry, rows, size = keys.values()
        self._record(table, Progress(generation, Position(ledger, entry), rows, size))
        commit(*arguments, **named)

    table.commit = record_and_commit  # type: ignore[method-assign]
    return _append(self, view, table, version, step)


def _trusts_written_files(self: HistoryTable, files: object) -> bool:
    return True


def _never_waits(*_: object) -> None:
    return None


def _reads_from_the_history_on(to: Position, trimmed: Position) -> Position:
    return to


def _by_the_oldest(file: DataFile, written_s: float | None) -> AgedFile:
    return _aged(file if not file.stats else _swapped(file), written_s)


def _swapped(file: DataFile) -> DataFile:
    text = file.stats.replace("maxValues", "?").replace("minValues", "maxValues").replace("?", "minValues")
    return replace(file, stats=text)


def _no_conflict(entry: Entry, content: Content, is_shared: bool) -> None:
    if not is_shared:
        _check_conflict(entry, content, is_shared)


def _looks_at_nothing(*_: object) -> None:
    pass


def _always_intact(view: View, piece: Piece) -> bool:
    return True


MUTANTS: Final = (
    Mutant(
        "a reader passes to the topic where the metadata say that the table ends",
        history,
        "boundary_of",
        _metadata_say_where_the_table_ends,
        ("build",),
    ),
    Mutant("a build goes on as if the table were not ahead", building, "next_step", _builds_again, ("build",)),
    Mutant(
        "a build records its progress before the table has it",
        building._PartBuild,
        "_append",
        _records_first,
        ("build",),
    ),
    Mutant(
        "a build does not look for the files that it has written",
        HistoryTable,
        "has_files",
        _trusts_written_files,
        ("build_vacuumed",),
    ),
    Mutant("trimming does not wait for builds", holders, "history_mark", _never_waits, ("want", "trim")),
    Mutant("a build reads what was trimmed", plan, "start_behind", _reads_from_the_history_on, ("build", "trim")),
    Mutant("a file is as old as its oldest message", retention, "_aged", _by_the_oldest, ("build", "retain")),
    Mutant("commits to a table do not conflict", chain, "_check_conflict", _no_conflict, ("build", "tidy", "keep_up")),
    Mutant(
        "copies are released without a look at the cold one",
        offloading,
        "_look_at",
        _looks_at_nothing,
        ("offload", "offload", "wait", "lose_copy"),
    ),
    Mutant(
        "a merge does not look whether its topic has changed",
        merge,
        "_is_intact",
        _always_intact,
        ("merge", "merge", "trim", "trim", "write", "write", "write"),
    ),
)
"""Each is noticed by the simulator."""
