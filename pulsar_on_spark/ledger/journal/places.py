"""Storage paths that may hold journals: directories on a disk, and object stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.object_path import ObjectPath

JournalPath: TypeAlias = LocalPath | ObjectPath
JournalPathTable: TypeAlias = Callable[[], Mapping[PathId, JournalPath]]
"""Function that returns a root's current storage paths for journals (see `storage_path.PathTable`)."""


def is_on_objects(path: JournalPath) -> bool:
    """Return True for a path on an object store, whose writes cost money and take long."""
    return isinstance(path, ObjectPath)
