"""The upkeep of all histories of a root: builds by policy, retention, merges, and deletion of what is not needed."""

from __future__ import annotations

import logging
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pulsar_on_spark.history_table.build import BuildOptions, build, recorded_progress
from pulsar_on_spark.history_table.merging import merge_small_files
from pulsar_on_spark.history_table.places import Claims, find_table, history_paths, path_of_table
from pulsar_on_spark.history_table.retention import ABANDONED_S, apply_retention, delete_files
from pulsar_on_spark.history_table.table import table_name
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.log.entry import LOG
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.health import Hold
from pulsar_on_spark.storage.objects.below import ObjectsBelow
from pulsar_on_spark.storage.objects.contract import ObjectStore
from pulsar_on_spark.storage.root_place import ObjectPlace, RootPlace, objects_at
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
_ID: Final = re.compile("[0-9a-f]{32}")
"""The form of topics' ids, which are the names of their tables."""
GRACE_S: Final = 600.0
"""Time in seconds for which the table of a deleted topic is kept, for frames that read it."""
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

    Raises:
        TopicNotFoundError: there is no such topic.
        InvalidArgumentError: it is a partition, or the table is on an object store, where no name is used twice.
        HistoryTableError: the table's folder cannot be reached, or cannot be deleted; try again.
    """

    def decide(view: View) -> Change | None:
        topic = catalog.require_topic(view, name)
        if topic.partition_of is not None:
            raise InvalidArgumentError(f"{name} is a partition: give its topic, whose table has all partitions.")
        parts = catalog.parts(view, topic)
        records = [record for part in parts if (record := view.get(HistoryRecord, part.topic_id)) is not None]
        moved: dict[str, int | None] = {keys.topic(part.name): None for part in parts}
        return Change(deletes=records, keys=moved) if records else None

    view = root.store.view(durable=True)
    folder = _table_to_delete(root, view, catalog.require_topic(view, name))
    if folder is None:
        root.store.commit(decide)
        return
    if not isinstance(folder, Path):
        raise InvalidArgumentError(
            f"The history table {folder} cannot be deleted, because no name on an object store is used twice: set its "
            "retention to 0 to drop its rows, or delete the topic."
        )
    root.store.commit(decide)
    # Under another id, it is at once no table of the topic; if this process dies here, housekeeping deletes it.
    renamed = folder.with_name(uuid.uuid4().hex)
    try:
        with suppress(FileNotFoundError):
            folder.rename(renamed)
            shutil.rmtree(renamed)
    except OSError as error:
        raise HistoryTableError(f"The history table {folder} cannot be deleted ({error}): try again.") from error


def _table_to_delete(root: RootHandle, view: View, topic: TopicRecord) -> RootPlace | None:
    """Return the place of a topic's table; None if its path was given up, or is that of another copy of the root."""
    path_id = path_of_table(view, topic)
    if path_id is None:
        return root.place / table_name(topic.topic_id)
    path = root.storage_paths(view)[path_id]
    unheld = None if path.is_given_up else unheld_paths(root, view, [path_id]).get(path_id)
    if path.is_given_up or (unheld is not None and unheld.hold is Hold.FOREIGN):
        return None
    Claims(root).require(path)
    return path.place / table_name(topic.topic_id)


def _keep_up_topic(
    root: RootHandle, topic: TopicRecord, parts: Sequence[TopicPart], policy: HistoryPolicies, claims: Claims
) -> list[str]:
    """Keep up a topic's history; returns a sentence for each part, or for the table, that could not be kept up."""

    def build_part(part: TopicPart) -> None:
        claims.require(find_table(root, root.store.view(), topic).path)
        build(root, TopicName.parse(part.name), BuildOptions(limit_bytes=PASS_BYTES, is_claimed=True))

    def keep_up_table() -> None:
        table = find_table(root, root.store.view(), topic)
        claims.require(table.path)
        if table.exists():
            apply_retention(table, policy)
            merge_small_files(table)
            delete_files(table, parts)
            table.housekeep()

    steps: list[tuple[str, Callable[[], object]]] = [
        (part.name, partial(build_part, part)) for part in parts if policy.enabled
    ]
    problems = []
    for name, step in [*steps, (topic.name, keep_up_table)]:
        try:
            step()
        except TopicNotFoundError:
            pass  # it was deleted meanwhile
        except (PulsarpyError, OSError) as error:
            _LOGGER.warning("The history of %s cannot be kept up: %s", name, error, extra={"topic": topic.name})
            problems.append(f"history of {name}: {error}")
        except Exception as error:  # a defect, or values that no library call expects: other histories go on
            _LOGGER.exception("The history of %s is not kept up.", name, extra={"topic": topic.name})
            problems.append(f"history of {name}: {error!r}")
    return list(dict.fromkeys(problems))


def _delete_tables(root: RootHandle, path: StoragePath | None, claims: Claims) -> None:
    """Delete the tables of topics that no longer exist, in the root or on a storage path.

    A topic exists before its table, and its id is never reused. The table of a topic whose history is elsewhere is left
    from a first build that died before the storage path for new tables was changed. On an object store it stays until
    its topic is deleted, because no name there is used twice.
    """
    if path is not None:
        path.check()
    base = root.place if path is None else path.place
    # Listed before the topics are read. Other names are not ours, for example copies that an operator has made.
    found = [name for name in _tables(base) if _ID.fullmatch(name)]
    view = root.store.view(durable=True)
    places = {topic.topic_id: path_of_table(view, topic) for topic in view.all(TopicRecord)} if found else {}
    here = None if path is None else path.path_id
    for name in found:
        if name in places and (places[name] == here or not isinstance(base, Path)):
            continue
        if time.time() - _changed_s(base, name) > (ABANDONED_S if name in places else GRACE_S):
            claims.require(path)
            _LOGGER.info("The history table %s is deleted from %s: no topic has it.", name, base)
            _delete(base, name)


def _tables(base: RootPlace) -> Iterator[str]:
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


def _changed_s(base: RootPlace, name: str) -> float:
    """Return the time of a table's last commit, or of its last file, in seconds since 1970."""
    if isinstance(base, Path):
        folder, log = base / HISTORY / name, base / HISTORY / name / LOG
        return (log if log.exists() else folder).stat().st_mtime
    return max((listed.written_s for listed in _objects(base, name).list_after("")), default=0.0)


def _delete(base: RootPlace, name: str) -> None:
    if isinstance(base, Path):
        shutil.rmtree(base / HISTORY / name)
        return
    objects = _objects(base, name)
    for listed in list(objects.list_after("")):
        objects.delete(listed.key)


def _objects(base: ObjectPlace, name: str) -> ObjectStore:
    return ObjectsBelow(objects_at(base), f"{HISTORY}/{name}")
