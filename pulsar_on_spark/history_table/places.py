"""The names and locations of history tables: in the root itself, or on storage paths with the role `history`.

The first build of a topic stores the table's name and storage path in the metadata, and then creates the table. The
path is the newest history path that is neither drained nor given up; without one, the table is in the root. A table
stays on its path when paths are added or drained.

No name is used twice. So a build that still runs when its history is deleted cannot write to the topic's next table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import HistoryRecord, HistoryTableRecord, PathRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import HistoryTableError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import keeps_copies
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import claim


def owner_of(view: View, topic: TopicRecord) -> TopicRecord:
    """Return the record of the topic that has the history table: the partitioned topic of a partition, or `topic`."""
    owner = None if topic.partition_of is None else view.get(TopicRecord, topic.partition_of)
    return topic if owner is None else owner


def path_for_new_tables(view: View) -> PathId | None:
    """Return the id of the storage path on which new tables are created; None for the root itself. Pure."""
    paths = view.all(PathRecord)
    ids = [path.path_id for path in paths if path.role == "history" and keeps_copies(path.state)]
    return PathId(max(ids)) if ids else None


def name_table(root: RootHandle, owner: TopicRecord) -> None:
    """Store the name and storage path of a new history table for a topic in the metadata.

    If the topic has a table already, or is deleted, nothing is stored.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    table = f"{HISTORY}/{owner.topic_id}-{uuid.uuid4().hex[:8]}"

    def decide(view: View) -> Change | None:
        topic, named = view.get(TopicRecord, owner.name), view.get(HistoryTableRecord, owner.topic_id)
        if topic is None or topic.topic_id != owner.topic_id or named is not None:
            return None
        path_id = path_for_new_tables(view)
        moved: dict[str, int | None] = {keys.topic(owner.name): None}
        if path_id is not None:
            moved[keys.path(path_id)] = None  # so that no other commit gives it up
        record = HistoryTableRecord(topic_id=owner.topic_id, table=table, path_id=path_id)
        return Change(puts=[record], keys=moved)

    root.store.commit(decide)


def history_paths(root: RootHandle, view: View) -> list[StoragePath]:
    """Return the storage paths that may have history tables, without paths that were given up or retired."""
    ids = {path.path_id for path in view.all(PathRecord) if path.role == "history" and path.state != "lost"}
    return [path for path_id, path in root.storage_paths(view).items() if path_id in ids]


def find_table(root: RootHandle, view: View, topic: TopicRecord) -> HistoryTable | None:
    """Return the history table of a topic, or of a partition's topic; None if the topic has none.

    The table may not exist yet, because the first build stores its name before it creates the table: see `is_begun`.

    Raises:
        HistoryTableError: the table's storage path was given up.
    """
    owner = owner_of(view, topic)
    record = view.get(HistoryTableRecord, owner.topic_id)
    if record is None:
        return None
    if record.path_id is None:
        return HistoryTable(root.place, record.table)
    path = root.storage_paths(view)[PathId(record.path_id)]
    if path.is_given_up:
        raise HistoryTableError(
            f"The history table of {owner.name} is on {path}, which was marked as lost: bring it back with `pulsarpy "
            "storage add`, or delete the history with `pulsarpy history delete`."
        )
    return HistoryTable(root.place, record.table, path)


def is_begun(view: View, parts: Iterable[TopicPart], table: HistoryTable) -> bool:
    """Return True if a topic's history table was created, even if it is missing now (raises `HistoryTableError`)."""
    return any(view.get(HistoryRecord, part.topic_id) is not None for part in parts) or table.exists()


class Claims:
    """The claims of storage paths by one build or housekeeping pass: only one copy of a root may write to a path.

    Each path is claimed at its first use.
    """

    def __init__(self, root: RootHandle) -> None:
        self._root = root
        self._refusals: dict[PathId, str] = {}

    def require(self, path: StoragePath | None) -> None:
        """Claim the storage path of a history table before it is changed; None, for the root itself, needs no claim.

        Raises:
            HistoryTableError: another copy of the root has claimed the path, or the path cannot be reached.
            MetadataError: the metadata cannot be read or written.
        """
        if path is None:
            return
        if path.path_id not in self._refusals:
            self._refusals[path.path_id] = claim(self._root, [path.path_id]).get(path.path_id, "")
        if reason := self._refusals[path.path_id]:
            raise HistoryTableError(reason)


def require_held(root: RootHandle, view: View, table: HistoryTable) -> None:
    """Check that no other copy of the root changes a history table.

    Raises:
        HistoryTableError: another copy of the root has claimed the table's storage path, or the claim cannot be read.
        MetadataError: the metadata cannot be read.
    """
    if table.path is not None and (unheld := unheld_paths(root, view, [table.path.path_id])):
        raise HistoryTableError(unheld[table.path.path_id].reason)
