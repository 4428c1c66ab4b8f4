"""Translation between the metadata records of storage paths, their folders or URLs, and `StoragePath` objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pulsar_on_spark.ledger.journal.places import JournalPath
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.bounded_path import BoundedPath
from pulsar_on_spark.storage.health import APART
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.object_path import ObjectPath
from pulsar_on_spark.storage.root_place import RootPlace, parse_place
from pulsar_on_spark.storage.storage_path import StoragePath


def uri_of(root: RootPlace, place: RootPlace) -> str:
    """Return the URI for a storage path's record: relative to the root if the path is inside it, else absolute."""
    inside = str(place).removeprefix(f"{root}/")
    return inside if inside != str(place) else str(place)


def place_of(root: RootPlace, record: PathRecord) -> RootPlace:
    """Return the folder or object store that a storage path's record names.

    One inside the root has the root's profile.
    """
    if "://" in record.uri:
        return parse_place(record.uri, record.profile)
    return Path(record.uri) if record.uri.startswith("/") else root / record.uri


def journal_paths(paths: Mapping[PathId, StoragePath]) -> dict[PathId, JournalPath]:
    """Return the paths that can hold journals, typed as `JournalPath`."""
    return {path_id: path for path_id, path in paths.items() if isinstance(path, LocalPath | ObjectPath)}


def storage_path(root: RootPlace, cluster_id: str, record: PathRecord) -> JournalPath:
    """Return the storage path of a record, which belongs to the root with this cluster id."""
    place, path_id, is_given_up = place_of(root, record), PathId(record.path_id), record.state == "lost"
    if isinstance(place, Path):
        return LocalPath(path_id, place, cluster_id, record.label, record.host, is_given_up=is_given_up)
    return ObjectPath(path_id, place, cluster_id, record.label, is_given_up=is_given_up)


def segment_path(root: RootPlace, cluster_id: str, record: PathRecord) -> StoragePath:
    """Return the storage path of a record, for all files except journals.

    Each call to a cold or history path in a directory has a time limit, because a network file system may hang.
    """
    path = storage_path(root, cluster_id, record)
    return BoundedPath(path) if record.role in APART and isinstance(path, LocalPath) else path
