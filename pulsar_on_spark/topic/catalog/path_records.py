"""Storage paths as the metadata record them: the translation between records, places and paths."""

from __future__ import annotations

from pathlib import Path

from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath


def uri_of(root: RootPlace, place: RootPlace) -> str:
    """Return what a storage path's record holds: the place relative to the root if it is inside it, else absolute."""
    inside = str(place).removeprefix(f"{root}/")
    return inside if inside != str(place) else str(place)


def storage_path(root: RootPlace, cluster_id: str, record: PathRecord) -> StoragePath:
    """Return the storage path of a record."""
    assert isinstance(root, Path)
    is_given_up = record.state == "lost"
    return StoragePath(PathId(record.path_id), root / record.uri, cluster_id, record.label, is_given_up=is_given_up)
