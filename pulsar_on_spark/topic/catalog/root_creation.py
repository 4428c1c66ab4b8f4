"""Creation of a root in an empty folder or below a URL. An interrupted creation can be continued."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pulsar_on_spark.metadata.features import OBJECT_PATHS
from pulsar_on_spark.metadata.log.tables import LOCK, METADATA
from pulsar_on_spark.metadata.records import NamespaceRecord, PathRecord, Record, RootRecord, TenantRecord
from pulsar_on_spark.metadata.store import FORMAT_VERSION, CopiedRows, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError, NotARootError, RootExistsError
from pulsar_on_spark.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM, Quorum
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.durability import locked
from pulsar_on_spark.storage.files import OS_FILES, make_directory, write_file
from pulsar_on_spark.storage.identity import IDENTITY_NAME, Identity
from pulsar_on_spark.storage.objects.contract import Exists, ObjectStore
from pulsar_on_spark.storage.objects.probe import PROBE_PREFIX, probe
from pulsar_on_spark.storage.reports import REPORTS
from pulsar_on_spark.storage.root_place import LEASES, ObjectPlace, RootPlace, objects_at
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.path_records import storage_path

OBJECT_QUORUM: Final = Quorum(1, 1, 1)
"""The default quorum of a root on an object store, which keeps several copies of each object by itself."""
STORAGE: Final = "storage"
_LOST_AND_FOUND: Final = "lost+found"
_OWN_NAMES: Final = {METADATA, LEASES, REPORTS, STORAGE, LOCK, _LOST_AND_FOUND}


@dataclass(frozen=True, slots=True)
class Content:
    """Metadata of a new root, without its `RootRecord` and the records of its storage paths.

    Attributes:
        records: The records to commit.
        copied: Metadata rows to copy from another root; None for none.
        features: The features that a program must know because of `records` and `copied` (see `RootRecord`).
    """

    records: Sequence[Record]
    copied: CopiedRows | None = None
    features: Mapping[str, Literal["read", "write"]] = field(default_factory=dict)


Fill: TypeAlias = Callable[[Sequence[StoragePath]], Content]
"""Function that puts files on the storage paths of a new root, and returns the metadata that name them."""


def _empty(paths: Sequence[StoragePath]) -> Content:
    return Content(
        [TenantRecord(tenant=DEFAULT_TENANT), NamespaceRecord(namespace=f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}")]
    )


def create_root(place: RootPlace, uris: Sequence[str], quorum: Quorum, file_mode: int, fill: Fill = _empty) -> None:
    """Create a root (errors as `RootHandle.create`).

    Args:
        place: The folder or URL of the root.
        uris: The storage paths: folders or URLs, relative to the root or absolute.
        quorum: The default quorum.
        file_mode: The permissions of a local root's files.
        fill: Called when the storage paths exist. The root exists once the metadata that it returns are committed.
    """
    if isinstance(place, Path):
        _create_in_folder(place, uris, quorum, file_mode, fill)
    else:
        _create_on_objects(place, uris, quorum, fill)


def default_uris(place: RootPlace, quorum: Quorum) -> list[str]:
    """Return the default storage paths, relative to the root: one for each copy, and at least 3 for a local root."""
    count = max(DEFAULT_QUORUM.ensemble if isinstance(place, Path) else 1, quorum.ensemble)
    return [f"{STORAGE}/{index}" for index in range(count)]


def is_foreign(place: RootPlace) -> bool | None:
    """Return True if a folder or object store has something other than a root, False if it is missing or has nothing.

    Return None if the folder is empty, or if there may be a root, whose creation may be unfinished.
    """
    if not isinstance(place, Path):
        return _holds_foreign_objects(objects_at(place))
    try:
        if not _may_become_root(place):
            return True
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return place.exists()
    return None


def _create_in_folder(root: Path, uris: Sequence[str], quorum: Quorum, file_mode: int, fill: Fill) -> None:
    if root.exists() and not root.is_dir():
        raise NotARootError(f"{root} is a file: give the path of a folder for the root.")
    if root.exists() and not _may_become_root(root) and not MetadataStore.exists(root):
        foreign = sorted(set(os.listdir(root)) - {_LOST_AND_FOUND})[0]
        raise NotARootError(f"{root} is not empty (it holds {foreign!r}) and is not a root: choose another path.")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"The root {root} cannot be made ({error.strerror}): give a folder in which this user may write."
        ) from error
    if not MetadataStore.exists(root):
        permissions.set_mode(root, permissions.folder_mode(file_mode))
    with locked(root / LOCK):
        _require_no_root(root)
        for name in (METADATA, LEASES, REPORTS):
            make_directory(OS_FILES, root / name)
        cluster_id = _cluster_id(root / METADATA / "cluster-id")
        _create_with_paths(root, cluster_id, quorum, uris, fill, {}, mode=permissions.mode_of(root))


def _create_on_objects(root: ObjectPlace, uris: Sequence[str], quorum: Quorum, fill: Fill) -> None:
    objects = objects_at(root)
    if _holds_foreign_objects(objects):
        raise NotARootError(f"{root} is not empty and is not a root: give a URL below which there are no objects.")
    _require_no_root(root)
    probe(objects, str(root))
    cluster_id = _identity(root, objects)
    _create_with_paths(root, cluster_id, quorum, uris, fill, {OBJECT_PATHS: "read"})


def _create_with_paths(
    root: RootPlace,
    cluster_id: str,
    quorum: Quorum,
    uris: Sequence[str],
    fill: Fill,
    features: Mapping[str, Literal["read", "write"]],
    mode: int | None = None,
) -> None:
    """Create the storage paths, fill them, and commit the metadata, the root's record first.

    `mode` has the permissions of a local root's files; None on an object store.
    """
    records = [PathRecord(path_id=number, uri=uri) for number, uri in enumerate(uris)]
    paths = [storage_path(root, cluster_id, record) for record in records]
    for path in paths:
        path.create(mode=mode)
    content = fill(paths)
    own = RootRecord(
        format_version=FORMAT_VERSION,
        cluster_id=cluster_id,
        quorum=str(quorum),
        features={**content.features, **features},
    )
    MetadataStore.create(root, [own, *records, *content.records], content.copied)


def _holds_foreign_objects(objects: ObjectStore) -> bool | None:
    """Return the result of `is_foreign` (True, False or None) for a prefix of an object store.

    A root's first object is its identity; only probes may come before it.
    """
    if objects.head(IDENTITY_NAME) is not None:
        return None
    if all(listed.key.startswith(f"{PROBE_PREFIX}/") for listed in objects.list_after("")):
        return False
    return None if objects.head(IDENTITY_NAME) is not None else True


def _identity(root: ObjectPlace, objects: ObjectStore) -> str:
    """Write the root's identity. Return its cluster id, or the one that an interrupted or concurrent creation wrote."""
    new = Identity(uuid.uuid4().hex, None)
    written = objects.create(IDENTITY_NAME, new.encode())
    if isinstance(written, Exists):
        return _identity_of_root(root, written.content).cluster_id
    return new.cluster_id


def _identity_of_root(root: ObjectPlace, content: bytes) -> Identity:
    found = Identity.decode(content, f"Root {root}")
    if found.path_id is not None:
        raise NotARootError(
            f"{root} is storage path {found.path_id} of another root (cluster {found.cluster_id}): choose another "
            "prefix."
        )
    return found


def _require_no_root(place: RootPlace) -> None:
    if MetadataStore.exists(place) and _has_root_record(place):
        raise RootExistsError(f"{place} is a root already: open it, or choose another path.")


def _has_root_record(place: RootPlace) -> bool:
    try:
        MetadataStore(place)
    except NotARootError:
        return False
    return True


def _may_become_root(folder: Path) -> bool:
    """Return True if the folder is empty or holds an unfinished root, whose lock file is created first."""
    names = set(os.listdir(folder))
    return names <= {_LOST_AND_FOUND} or (LOCK in names and names <= _OWN_NAMES)


def _cluster_id(file: Path) -> str:
    """Return a new id, or the id that an interrupted attempt wrote, because its storage paths have that id."""
    if not file.exists():
        write_file(OS_FILES, file, uuid.uuid4().hex.encode())
    return file.read_text().strip()
