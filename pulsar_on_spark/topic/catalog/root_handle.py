"""A root: the folder (one URI) that holds metadata, leases, reports and, by default, three storage paths."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, cast

from pulsar_on_spark.ledger.segments.segment_writer import FileNotWrittenError
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import (
    NamespaceRecord,
    PathRecord,
    RootRecord,
    TenantRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import FORMAT_VERSION, Change, MetadataStore
from pulsar_on_spark.model.errors import (
    InvalidArgumentError,
    MetadataError,
    NotARootError,
    RootExistsError,
    StoragePathError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM, Quorum
from pulsar_on_spark.model.root_path import local_path
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.durability import locked
from pulsar_on_spark.storage.files import OS_FILES, make_directory, write_file
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.storage.probe import examine
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath

log = logging.getLogger(__name__)

_MAX_SHARED = 8
_shared: dict[tuple[type[RootHandle], Path], tuple[object, RootHandle]] = {}
_LOCK = "lock"
_LOST_AND_FOUND = "lost+found"
_OWN_NAMES = {"metadata", "leases", "reports", "storage", _LOCK, _LOST_AND_FOUND}


class RootHandle:
    """An open root: its metadata store and its storage paths."""

    def __init__(self, path: Path) -> None:
        """Open the root at `path`.

        Raises:
            NotARootError: the path does not exist or is no root.
            FormatVersionError: a newer version wrote it.
        """
        if not path.exists():
            raise NotARootError(f"Root {path} does not exist: make it with `pulsarpy init {path}`, or write to it.")
        self.path = path
        self.store = MetadataStore(path)
        self.cluster_id = self.store.root_record.cluster_id
        self.quorum = Quorum.parse(self.store.root_record.quorum)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing root (see `RootHandle`)."""
        return cls(local_path(path))

    @classmethod
    def create(
        cls,
        path: str | Path,
        storage_paths: Sequence[str | Path] = (),
        quorum: Quorum = DEFAULT_QUORUM,
        file_mode: int = permissions.PRIVATE,
    ) -> Self:
        """Create a root, or finish a creation that was interrupted.

        Args:
            path: An absent path, or an empty folder.
            storage_paths: One or more directories, on different disks if the data are to survive the loss of a disk; by
                default `storage/0` to `storage/<write quorum - 1>` (at least three) inside the root.
            quorum: The default quorum of all topics.
            file_mode: The permissions of the root's files: 0o600, or 0o660 to let the folder's group write, too.
                Folders get 0700 or 2770, also existing ones if they belong to this user.

        Raises:
            NotARootError: the folder contains other files.
            RootExistsError: the path is a root already.
            InvalidArgumentError: there are fewer different storage paths than the ensemble needs.
            StoragePathError: a storage path contains other files, or cannot be written.
        """
        root = local_path(path)
        if root.exists() and not root.is_dir():
            raise NotARootError(f"{root} is a file: give the path of a folder for the root.")
        if root.exists() and not _may_become_root(root) and not MetadataStore.exists(root):
            foreign = sorted(set(os.listdir(root)) - {_LOST_AND_FOUND})[0]
            raise NotARootError(f"{root} is not empty (it holds {foreign!r}) and is not a root: choose another path.")
        directories = [local_path(directory) for directory in storage_paths]
        count = max(3, quorum.ensemble)
        uris = [str(directory) for directory in directories] or [f"storage/{index}" for index in range(count)]
        if len(set(uris)) < max(quorum.ensemble, len(uris)):
            raise InvalidArgumentError(
                f"Quorum {quorum} needs {quorum.ensemble} different storage paths, and {len(set(uris))} are given: "
                "give each --storage-path once, give more of them or a smaller --quorum."
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(
                f"The root {root} cannot be made ({error.strerror}): give a folder in which this user may write."
            ) from error
        if not MetadataStore.exists(root):
            permissions.set_mode(root, permissions.folder_mode(file_mode))
        with locked(root / _LOCK):
            if MetadataStore.exists(root) and _has_root_record(root):
                raise RootExistsError(f"{root} is a root already: open it, or choose another path.")
            _fill(root, uris, quorum)
        return cls(root)

    @classmethod
    def open_or_create(cls, path: str | Path) -> Self:
        """Open a root; if the path is absent or an empty folder, create one, with a warning in the log."""
        root = local_path(path)
        if cls.is_occupied(root):
            return cls.shared(root)
        try:
            created = cls.create(root)
        except RootExistsError:  # another process created it first
            return cls.shared(root)
        log.warning("Created the root %s: there was nothing at this path.", root)
        return created

    @classmethod
    def is_occupied(cls, path: Path) -> bool:
        """Return True if the path holds a root or foreign files; a write creates a root only at an unoccupied path.

        A root whose creation is in progress, or was interrupted, does not count yet.
        """
        try:
            if not _may_become_root(path):
                return True
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return path.exists()
        try:
            cls.shared(path)
        except NotARootError:
            return False
        return True

    @classmethod
    def shared(cls, path: Path) -> Self:
        """Get this process's handle on a root, opened at first use, and again if the root was replaced on disk."""
        identity = cls._identity(path)
        cached = _shared.get((cls, path))
        if cached is None or cached[0] != identity:
            while len(_shared) >= _MAX_SHARED:
                _shared.pop(next(iter(_shared)))
            cached = _shared[cls, path] = (identity, cls(path))
        return cast("Self", cached[1])

    @staticmethod
    def _identity(path: Path) -> tuple[int, int, int] | None:
        try:
            status = (path / "metadata" / "main" / "_delta_log").stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, os.getpid()

    def storage_paths(self, view: View) -> dict[PathId, StoragePath]:
        """Return all storage paths by id, without retired ones."""
        return {
            PathId(record.path_id): _storage_path(self.path, self.cluster_id, record)
            for record in view.all(PathRecord)
            if record.state != "retired"
        }

    def current_storage_paths(self) -> dict[PathId, StoragePath]:
        """Return the storage paths of a new view, for readers that outlive a view (raises `MetadataError`)."""
        return self.storage_paths(self.store.view())

    def examine_paths(self, view: View) -> dict[PathId, PathHealth]:
        """Examine all storage paths, without retired ones; blocks while a disk hangs."""
        records = {PathId(record.path_id): record for record in view.all(PathRecord)}
        return {
            path_id: replace(
                examine(path, records[path_id].reason),
                state=records[path_id].state,
                is_checked=records[path_id].check_since is None,
            )
            for path_id, path in self.storage_paths(view).items()
        }

    def writable_paths(self, view: View) -> list[StoragePath]:
        """Return the storage paths to write to, with their free bytes as weights.

        Paths that failed before are included only if the writable ones are fewer than the ack quorum.
        """
        records = [record for record in view.all(PathRecord) if record.state == "writable"]
        if len(records) < self.quorum.ack:
            records += [record for record in view.all(PathRecord) if record.state == "read-only" and record.reason]
        return [_weighed(_storage_path(self.path, self.cluster_id, record)) for record in records]

    def mark_failed(self, failures: Sequence[PathFailure]) -> None:
        """Mark storage paths that failed during a write as read-only, until `maintain` finds them well again."""
        reasons = {failure.path_id: failure.reason for failure in failures}
        now = datetime.now(UTC)

        def decide(view: View) -> Change | None:
            failed = [
                record.model_copy(
                    update={"state": "read-only", "reason": reasons[PathId(record.path_id)], "failed_at": now}
                )
                for record in view.all(PathRecord)
                if record.path_id in reasons and record.state == "writable"
            ]
            return Change(puts=failed, keys={keys.path(r.path_id): None for r in failed}) if failed else None

        self.store.commit(decide)

    @contextmanager
    def marking_failures(self) -> Iterator[None]:
        """Mark the storage paths that failed if a file written in this block gets too few copies.

        The block's error is raised in any case. If the mark cannot be committed, the next write tries the failed paths
        again.
        """
        try:
            yield
        except FileNotWrittenError as error:
            try:
                self.mark_failed(error.failures)
            except MetadataError as unmarked:
                log.warning("Storage paths could not be marked as failed: %s", unmarked)
            raise


def _storage_path(root: Path, cluster_id: str, record: PathRecord) -> StoragePath:
    is_given_up = record.state == "lost"
    return StoragePath(PathId(record.path_id), root / record.uri, cluster_id, record.label, is_given_up=is_given_up)


def _weighed(path: StoragePath) -> StoragePath:
    """Return the path with its free bytes as weight; a path that cannot be examined gets the lowest weight."""
    try:
        return replace(path, weight=path.free_bytes())
    except StoragePathError:
        return path


def _may_become_root(folder: Path) -> bool:
    """Return True if the folder is empty, or holds an unfinished root, of which the lock file is created first."""
    names = set(os.listdir(folder))
    return names <= {_LOST_AND_FOUND} or (_LOCK in names and names <= _OWN_NAMES)


def _has_root_record(root: Path) -> bool:
    try:
        MetadataStore(root)
    except NotARootError:
        return False
    return True


def _fill(root: Path, uris: Sequence[str], quorum: Quorum) -> None:
    """Create all parts of a root, the root record last, so that an interrupted creation can be continued."""
    for name in ("metadata", "leases", "reports"):
        make_directory(OS_FILES, root / name)
    cluster_id = _cluster_id(root / "metadata" / "cluster-id")
    records = [PathRecord(path_id=number, uri=uri) for number, uri in enumerate(uris)]
    for record in records:
        _storage_path(root, cluster_id, record).create(mode=permissions.mode_of(root))
    first = RootRecord(format_version=FORMAT_VERSION, cluster_id=cluster_id, quorum=str(quorum))
    tenant = TenantRecord(tenant=DEFAULT_TENANT)
    namespace = NamespaceRecord(namespace=f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}")
    MetadataStore.create(root, [first, *records, tenant, namespace])


def _cluster_id(file: Path) -> str:
    """Return a new id, or the id that an interrupted attempt wrote, because its storage paths have that id."""
    if not file.exists():
        write_file(OS_FILES, file, uuid.uuid4().hex.encode())
    return file.read_text().strip()
