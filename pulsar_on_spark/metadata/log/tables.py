"""The logs of a root's metadata tables, in a local folder or on an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pulsar_on_spark.metadata.log.creation import has_log
from pulsar_on_spark.metadata.log.local_log import LocalLog
from pulsar_on_spark.metadata.log.log_store import LogStore, SharedLog
from pulsar_on_spark.metadata.log.object_log import ObjectLog
from pulsar_on_spark.model.errors import MetadataError, ObjectsUnreachableError
from pulsar_on_spark.storage.objects.below import ObjectsBelow
from pulsar_on_spark.storage.root_place import RootPlace, objects_at

METADATA: Final = "metadata"
HISTORY: Final = "history"
"""The folder of all history tables in a root, or on a storage path."""
LOCK: Final = "lock"
"""The name of a local root's lock file, which creation, clean-up and repair hold."""


def log_store(root: RootPlace, table: str) -> LogStore:
    """Return the log store of a metadata table, which need not exist."""
    if isinstance(root, Path):
        return LocalLog(root / METADATA / table, root / LOCK)
    return read_only_log(root, table)


def read_only_log(root: RootPlace, table: str) -> LogStore:
    """Return the log store of a metadata table for a reader, which repairs nothing and needs no write permission."""
    if isinstance(root, Path):
        return LocalLog(root / METADATA / table)
    below = f"{METADATA}/{table}"
    return ObjectLog(ObjectsBelow(objects_at(root), below), str(root / below))


def history_log(root: RootPlace, base: RootPlace, name: str) -> SharedLog:
    """Return the log store of a history table, to which other programs may write, too.

    Args:
        root: The root.
        base: The root, or the folder or object store of a storage path.
        name: The table's folder, relative to `base`.
    """
    if isinstance(base, Path):
        return LocalLog(base / name, root / LOCK if isinstance(root, Path) else None, is_shared=True)
    return ObjectLog(ObjectsBelow(objects_at(base), name), str(base / name), is_shared=True)


def has_table(root: RootPlace, table: str) -> bool:
    """Return True if a root has a metadata table of this name.

    Raises:
        MetadataError: the root cannot be read now.
    """
    try:
        return has_log(log_store(root, table).objects)
    except ObjectsUnreachableError as error:
        raise MetadataError(str(error)) from error
