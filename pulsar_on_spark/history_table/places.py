"""The places of history tables: the root itself, or storage paths with the role `history`.

New tables are made on the newest such path that is neither drained nor given up, and without one in the root. The
metadata name the path of a table with the first build of a topic or partition. So a table stays where it is when paths
are added or drained, and all partitions of a topic have one table.
"""

from __future__ import annotations

from pulsar_on_spark.history_table.table import HistoryTable, table_name
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import HistoryRecord, PathRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import HistoryTableError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import keeps_copies
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import claim


def owner_of(view: View, topic: TopicRecord) -> TopicRecord:
    """Return the topic that has the table: for a partition, its partitioned topic."""
    owner = None if topic.partition_of is None else view.get(TopicRecord, topic.partition_of)
    return topic if owner is None else owner


def path_for_new_tables(view: View) -> PathId | None:
    """Return the storage path for new tables; None for the root. Pure."""
    paths = view.all(PathRecord)
    ids = [path.path_id for path in paths if path.role == "history" and keeps_copies(path.state)]
    return PathId(max(ids)) if ids else None


def path_of_table(view: View, owner: TopicRecord) -> PathId | None:
    """Return the storage path that a topic's table is on, or will be made on; None for the root. Pure."""
    for part in catalog.parts(view, owner):
        record = view.get(HistoryRecord, part.topic_id)
        if record is not None:
            return None if record.path_id is None else PathId(record.path_id)
    return path_for_new_tables(view)


def keys_of_place(owner: TopicRecord, path_id: PathId | None) -> dict[str, int | None]:
    """Return the keys of the commit that first names the place of a table, so that no other commit changes it."""
    return {keys.topic(owner.name): None, **({} if path_id is None else {keys.path(path_id): None})}


def history_paths(root: RootHandle, view: View) -> list[StoragePath]:
    """Return the storage paths that tables may be on, without those that were given up or retired."""
    ids = {path.path_id for path in view.all(PathRecord) if path.role == "history" and path.state != "lost"}
    return [path for path_id, path in root.storage_paths(view).items() if path_id in ids]


def find_table(root: RootHandle, view: View, topic: TopicRecord) -> HistoryTable:
    """Return the handle on the table of a topic, or of a partition's topic; the table need not exist.

    Raises:
        HistoryTableError: the table's storage path was given up.
    """
    owner = owner_of(view, topic)
    path_id = path_of_table(view, owner)
    if path_id is None:
        return HistoryTable(root.place, table_name(owner.topic_id))
    path = root.storage_paths(view)[path_id]
    if path.is_given_up:
        raise HistoryTableError(
            f"The history table of {owner.name} is on {path}, which was given up: bring it back with `pulsarpy storage "
            "add`, or delete the history with `pulsarpy history delete`."
        )
    return HistoryTable(root.place, table_name(owner.topic_id), path)


class Claims:
    """Claims of storage paths, before tables on them are changed: another copy of the root may have them.

    Each path is claimed at its first use.
    """

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._refusals: dict[PathId, str] = {}

    def require(self, path: StoragePath | None) -> None:
        """Claim the storage path of a table; None is the root.

        Raises:
            HistoryTableError: the path is another copy's, or cannot be reached.
            MetadataError: the metadata cannot be read or written.
        """
        if path is None:
            return
        if path.path_id not in self._refusals:
            self._refusals[path.path_id] = claim(self._root, [path.path_id]).get(path.path_id, "")
        if reason := self._refusals[path.path_id]:
            raise HistoryTableError(reason)


def require_held(root: RootHandle, view: View, table: HistoryTable) -> None:
    """Check that no other copy of the root changes the table.

    Raises:
        HistoryTableError: the table's storage path is another copy's, or its claim cannot be read.
        MetadataError: the metadata cannot be read.
    """
    if table.path is not None and (unheld := unheld_paths(root, view, [table.path.path_id])):
        raise HistoryTableError(unheld[table.path.path_id].reason)
