"""Deletion of whole history tables: of one topic's history, and of tables that no record in the metadata names."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pulsar_on_spark.history_table.places import Claims
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.storage.health import Hold
from pulsar_on_spark.storage.objects.below import ObjectsBelow
from pulsar_on_spark.storage.root_place import RootPlace, objects_at
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

GRACE_S: Final = 600.0
"""Seconds for which the table of a deleted topic is kept, for frames that still read the table."""
_NAME: Final = re.compile("[0-9a-f]{32}-[0-9a-f]{8}")
"""Pattern of the names of history tables' folders: the topic's id, and random digits."""
_UNNAMED: Final = "_unnamed"
"""Name of an empty file in a table's folder, whose time is the time since which no record names the table.

Readers of Delta ignore files whose names begin with an underscore.
"""
_LOGGER: Final = logging.getLogger(__name__)


def delete_history(root: RootHandle, name: TopicName) -> None:
    """Delete the history of a topic and its partitions. A later build has only messages that the topic still has.

    The table's files stay on a storage path that was given up, or that another copy of the root has claimed.

    Raises:
        TopicNotFoundError: the topic does not exist.
        InvalidArgumentError: the name is a partition's name.
        HistoryTableError: the history is deleted, but its files cannot be deleted now; housekeeping deletes them later.
        MetadataError: the metadata cannot be read or written.
    """
    deleted: HistoryTableRecord | None = None

    def decide(view: View) -> Change | None:
        nonlocal deleted
        topic = catalog.require_topic(view, name)
        if topic.partition_of is not None:
            raise InvalidArgumentError(
                f"{name} is a partition: give its partitioned topic, whose history has all partitions."
            )
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
    """Delete the files of a history table whose record is deleted already.

    Raises:
        HistoryTableError: the files cannot be deleted now; housekeeping deletes them later.
    """
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


def delete_unnamed_tables(root: RootHandle, path: StoragePath | None, claims: Claims) -> None:
    """Delete the history tables that no record has named for `GRACE_S` since a pass first found them.

    A build stores the record of a table before it creates the table, and no name is used twice.

    Args:
        root: The root.
        path: The storage path whose tables are checked; None for the root itself.
        claims: The claims of the pass.

    Raises:
        HistoryTableError: another copy of the root has claimed the path, or the path cannot be reached.
        StorageError, OSError: the path is missing, or files cannot be deleted.
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
    """Yield the names in the folder of history tables. On an object store, this takes one request for each name."""
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

    The first call stores this time as the time of an empty file in the table's folder.
    """
    objects, mark = objects_at(base), f"{table}/{_UNNAMED}"
    objects.create(mark, b"")
    made = objects.head(mark)
    return time.time() if made is None else made.written_s


def _delete(base: RootPlace, table: str) -> None:
    """Delete all files of a history table."""
    if isinstance(base, Path):
        with suppress(FileNotFoundError):
            shutil.rmtree(base / table)
        return
    objects = ObjectsBelow(objects_at(base), table)
    for listed in list(objects.list_after("")):
        objects.delete(listed.key)
