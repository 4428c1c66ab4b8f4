"""The upkeep of all histories of a root: builds by policy, retention, merges, and deletion of what is not needed."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pulsar_on_spark.history_table.build import BuildOptions, build, recorded_progress
from pulsar_on_spark.history_table.merging import merge_small_files
from pulsar_on_spark.history_table.places import Claims, find_table, history_paths
from pulsar_on_spark.history_table.retention import apply_retention, delete_files
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.health import Hold
from pulsar_on_spark.storage.objects.below import ObjectsBelow
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS, effective_policies
from pulsar_on_spark.topic.catalog.policies.policies import HistoryPolicies, Policies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.collect import DEFAULT_AGES, Ages
from pulsar_on_spark.topic.maintenance.maintain import MaintainReport, maintain
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER, RepairLimits

PASS_BYTES: Final = 4 << 30
"""Key and value bytes of a topic or partition that a pass builds, so that a large backlog does not hold up the rest."""
GRACE_S: Final = 600.0
"""Time in seconds for which the table of a deleted topic is kept, for frames that read it."""
_NAME: Final = re.compile("[0-9a-f]{32}-[0-9a-f]{8}")
"""The form of tables' names."""
_UNNAMED: Final = "_unnamed"
"""A file that tells since when no record names a table. Readers of Delta leave out files with such names."""
_LOGGER: Final = logging.getLogger(__name__)


def keep_up(root: RootHandle, defaults: Policies = DEFAULTS) -> list[str]:
    """Build the histories that policies ask for, apply their retention, and delete tables of deleted topics.

    Args:
        root: The root.
        defaults: The policies for fields that neither a topic nor its namespace sets.

    Returns:
        A sentence for each step that failed; the other steps were done.
    """
    problems: list[str] = []
    view, claims = root.store.view(), Claims(root)
    for topic in catalog.topics(view):
        policy = effective_policies(view, TopicName.parse(topic.name), defaults).history
        parts = catalog.parts(view, topic)
        if not (policy.enabled or any(recorded_progress(view, part.topic_id).generation for part in parts)):
            continue
        problems += _keep_up_topic(root, topic, parts, policy, claims)
    for path in (None, *history_paths(root, view)):
        try:
            _delete_tables(root, path, claims)
        except (PulsarpyError, OSError) as error:
            _LOGGER.warning("History tables of deleted topics cannot be deleted: %s", error)
            problems.append(f"history tables of deleted topics: {error}")
    return problems


def maintain_with_histories(
    root: RootHandle,
    ages: Ages = DEFAULT_AGES,
    progress: Progress = silent,
    repair_limits: RepairLimits = BESIDE_A_BROKER,
    defaults: Policies = DEFAULTS,
) -> MaintainReport:
    """Keep up the histories, and then run a pass of `maintain`, which can then trim what was built.

    Arguments and errors are those of `maintain`; the report has the problems of both.
    """
    problems = keep_up(root, defaults)
    done = maintain(root, ages, progress, repair_limits, defaults)
    return replace(done, problems=(*problems, *done.problems))


def delete_history(root: RootHandle, name: TopicName) -> None:
    """Delete a topic's history, with that of all its partitions; a later build has what the topic still has.

    On a storage path that was given up, or that another copy of the root has claimed, the table's files stay.

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: it is a partition.
        HistoryTableError: the history is deleted, but its files cannot be deleted now.
        MetadataError: the metadata cannot be read or written.
    """
    deleted: HistoryTableRecord | None = None

    def decide(view: View) -> Change | None:
        nonlocal deleted
        topic = catalog.require_topic(view, name)
        if topic.partition_of is not None:
            raise InvalidArgumentError(f"{name} is a partition: give its topic, whose table has all partitions.")
        deleted, parts = view.get(HistoryTableRecord, topic.topic_id), catalog.parts(view, topic)
        if deleted is None:
            return None
        built = [record for part in parts if (record := view.get(HistoryRecord, part.topic_id)) is not None]
        moved: dict[str, int | None] = {keys.topic(each): None for each in (topic.name, *(part.name for part in parts))}
        return Change(deletes=[deleted, *built], keys=moved)

    root.store.commit(decide)
    if deleted is not None:
        _delete_files(root, deleted)


def _delete_files(root: RootHandle, deleted: HistoryTableRecord) -> None:
    """Delete the files of a table that was deleted; if this fails, housekeeping does it later."""
    view, path = root.store.view(), None
    if deleted.path_id is not None:
        path_id = PathId(deleted.path_id)
        path = root.storage_paths(view)[path_id]
        unheld = None if path.is_given_up else unheld_paths(root, view, [path_id]).get(path_id)
        if path.is_given_up or (unheld is not None and unheld.hold is Hold.FOREIGN):
            return
    base = root.place if path is None else path.place
    try:
        Claims(root).require(path)
        _delete(base, deleted.table)
    except (PulsarpyError, OSError) as error:
        raise HistoryTableError(
            f"The history is deleted, but not the files of its table {base / deleted.table} ({error}): housekeeping "
            "deletes them later."
        ) from error


def _keep_up_topic(
    root: RootHandle, topic: TopicRecord, parts: Sequence[TopicPart], policy: HistoryPolicies, claims: Claims
) -> list[str]:
    """Keep up a topic's history; returns a sentence for each error, which names the first step that had it."""

    def keep_up_table() -> None:
        table = find_table(root, root.store.view(), topic)
        if table is None:
            return
        claims.require(table.path)
        if table.exists():
            try:
                apply_retention(table, policy)
            finally:  # a table that must keep its rows is merged, too
                merge_small_files(table)
                delete_files(table, parts)
                table.housekeep()

    options = BuildOptions(limit_bytes=PASS_BYTES)
    steps: list[tuple[str, Callable[[], object]]] = [
        (part.name, partial(build, root, TopicName.parse(part.name), options, claims))
        for part in parts
        if policy.enabled
    ]
    problems: dict[str, str] = {}
    for name, step in [*steps, (topic.name, keep_up_table)]:
        try:
            step()
        except TopicNotFoundError:
            pass  # it was deleted meanwhile
        except (PulsarpyError, OSError) as error:
            _LOGGER.warning("The history of %s cannot be kept up: %s", name, error, extra={"topic": topic.name})
            problems.setdefault(str(error), f"history of {name}: {error}")
        except Exception as error:  # a defect, or values that no library call expects: other histories go on
            _LOGGER.exception("The history of %s is not kept up.", name, extra={"topic": topic.name})
            problems.setdefault(str(error), f"history of {name}: {error!r}")
    return list(problems.values())


def _delete_tables(root: RootHandle, path: StoragePath | None, claims: Claims) -> None:
    """Delete the tables, in the root or on a storage path, that no record names, a while after a pass has found them.

    A table is named before it is made, and no name is used twice.
    """
    if path is not None:
        path.check()
    base, path_id = (root.place, None) if path is None else (path.place, path.path_id)
    # Listed before the records are read. Other names are not ours, for example copies that an operator has made.
    found = [f"{HISTORY}/{name}" for name in _names(base) if _NAME.fullmatch(name)]
    records = root.store.view(durable=True).all(HistoryTableRecord) if found else []
    named = {record.table for record in records if record.path_id == path_id}
    for table in found:
        if table not in named:
            claims.require(path)
            if time.time() - _unnamed_since_s(base, table) > GRACE_S:
                _LOGGER.info("The history table %s is deleted from %s: no topic has it.", table, base)
                _delete(base, table)


def _names(base: RootPlace) -> Iterator[str]:
    """Return the names below the folder of history tables; a request for each on an object store."""
    if isinstance(base, Path):
        folder = base / HISTORY
        yield from (each.name for each in (folder.iterdir() if folder.exists() else ()))
        return
    objects, after = objects_at(base), ""
    while (first := next(objects.list_after(HISTORY, after), None)) is not None:
        name = first.key.split("/")[1]
        yield name
        after = f"{HISTORY}/{name}0"  # "0" follows "/", so this is behind all keys of the table


def _unnamed_since_s(base: RootPlace, table: str) -> float:
    """Return the time at which a pass first found that no record names the table, in seconds since 1970.

    It is the time of an empty file in the table's folder.
    """
    objects, mark = objects_at(base), f"{table}/{_UNNAMED}"
    objects.create(mark, b"")
    made = objects.head(mark)
    return time.time() if made is None else made.written_s


def _delete(base: RootPlace, table: str) -> None:
    """Delete all files of a table."""
    if isinstance(base, Path):
        with suppress(FileNotFoundError):
            shutil.rmtree(base / table)
        return
    objects = ObjectsBelow(objects_at(base), table)
    for listed in list(objects.list_after("")):
        objects.delete(listed.key)
