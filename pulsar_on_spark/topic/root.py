"""A root: the folder (one URI) that holds metadata, leases, reports and, by default, three storage paths."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from pulsar_on_spark.ledger.segment_writer import PathFailure
from pulsar_on_spark.ledger.storage_path import IDENTITY_FILE, StoragePath
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import NamespaceRecord, PathRecord, RootRecord, TenantRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import FORMAT_VERSION, Change, MetadataStore
from pulsar_on_spark.model.errors import InvalidArgumentError, NotARootError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM, Quorum

log = logging.getLogger(__name__)

ROOT_VARIABLE = "PULSARPY_ROOT"
"""Environment variable that names the root where none is given."""
_MAX_SHARED = 8
_shared: dict[Path, tuple[object, Root]] = {}
_OWN_NAMES = {"metadata", "leases", "reports", "storage", "lock"}


class Root:
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
    def open(cls, path: str | Path) -> Root:
        """Open an existing root (see `Root`)."""
        return cls(local_path(path))

    @classmethod
    def create(
        cls, path: str | Path, storage_paths: Sequence[str | Path] = (), quorum: Quorum = DEFAULT_QUORUM
    ) -> Root:
        """Make a root, or finish one whose making was cut off.

        Args:
            path: absent, or an empty folder.
            storage_paths: one or more directories, on different disks if they are to survive one; by default
                `storage/0` to `storage/<write quorum - 1>` (at least three) inside the root.
            quorum: the default of all topics.

        Raises:
            NotARootError: the folder holds something else.
            InvalidArgumentError: it is a root already, or there are fewer storage paths than the ensemble needs.
        """
        root = local_path(path)
        if MetadataStore.exists(root) and _has_root_record(root):
            raise InvalidArgumentError(f"{root} is a root already: open it, or choose another path.")
        if root.exists() and not root.is_dir():
            raise NotARootError(f"{root} is a file: give the path of a folder for the root.")
        foreign = sorted(set(os.listdir(root)) - _OWN_NAMES) if root.exists() else []
        if foreign:
            raise NotARootError(f"{root} is not empty (it holds {foreign[0]!r}) and is not a root: choose another path.")
        given = [local_path(each) for each in storage_paths]
        count = max(3, quorum.ensemble)
        uris = [str(each) for each in given] or [f"storage/{index}" for index in range(count)]
        if len(set(uris)) < quorum.ensemble:
            raise InvalidArgumentError(
                f"Quorum {quorum} needs {quorum.ensemble} different storage paths, and {len(set(uris))} are given: "
                "give more --storage-path or a smaller --quorum."
            )
        for name in ("metadata", "leases", "reports"):
            (root / name).mkdir(parents=True, exist_ok=True)
        cluster_id = _cluster_id(root, uris)
        records = [PathRecord(path_id=number, uri=uri) for number, uri in enumerate(uris)]
        for record in records:
            _storage_path(root, cluster_id, record).create()
        first = RootRecord(format_version=FORMAT_VERSION, cluster_id=cluster_id, quorum=str(quorum))
        tenant = TenantRecord(tenant=DEFAULT_TENANT)
        namespace = NamespaceRecord(namespace=f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}")
        MetadataStore.create(root, [first, *records, tenant, namespace])
        return cls(root)

    @classmethod
    def open_or_create(cls, path: Path) -> Root:
        """Open a root, or make one, with a warning in the log, where the path is absent or an empty folder."""
        if cls.is_occupied(path):
            return cls.shared(path)
        created = cls.create(path)
        log.warning("Created the root %s: there was nothing at this path.", path)
        return created

    @staticmethod
    def is_occupied(path: Path) -> bool:
        """Whether there is anything at the path: a write makes a root only where there is nothing."""
        return path.exists() and (not path.is_dir() or any(path.iterdir()))

    @classmethod
    def shared(cls, path: Path) -> Root:
        """This process's handle on a root, opened at first use. A root that was replaced on disk is opened anew."""
        identity = cls._identity(path)
        known = _shared.get(path)
        if known is None or known[0] != identity:
            while len(_shared) >= _MAX_SHARED:
                _shared.pop(next(iter(_shared)))
            known = _shared[path] = (identity, cls(path))
        return known[1]

    @staticmethod
    def _identity(path: Path) -> tuple[int, int, int] | None:
        try:
            found = (path / "metadata" / "main" / "_delta_log").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, os.getpid()

    def storage_paths(self, view: View) -> dict[PathId, StoragePath]:
        """All storage paths by id."""
        return {
            PathId(record.path_id): _storage_path(self.path, self.cluster_id, record) for record in view.all(PathRecord)
        }

    def writable_paths(self, view: View) -> list[StoragePath]:
        """The storage paths to write to; those that failed before only where the others are fewer than the ack quorum."""
        records = [record for record in view.all(PathRecord) if record.state == "writable"]
        if len(records) < self.quorum.ack:
            records += [record for record in view.all(PathRecord) if record.state == "read-only" and record.reason]
        return [_storage_path(self.path, self.cluster_id, record) for record in records]

    def mark_failed(self, failures: Sequence[PathFailure]) -> None:
        """Mark storage paths that failed under a write as read-only, with the reason, until `maintain` finds them well."""
        reasons = {failure.path_id: failure.reason for failure in failures}

        def decide(view: View) -> Change | None:
            failed = [
                record.model_copy(update={"state": "read-only", "reason": reasons[PathId(record.path_id)]})
                for record in view.all(PathRecord)
                if record.path_id in reasons and record.state == "writable"
            ]
            return Change(puts=failed, keys={keys.path(r.path_id): None for r in failed}) if failed else None

        self.store.commit(decide)


def local_path(given: str | Path) -> Path:
    """The absolute local path of a root or storage path, given as a path or a `file:` URI.

    Raises:
        InvalidArgumentError: it is a URI of another scheme.
    """
    text = str(given)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif "://" in text:
        scheme = text.split("://", 1)[0]
        raise InvalidArgumentError(f"{text!r} has the scheme {scheme!r}: roots are local paths or file: URIs.")
    if not text.strip():
        raise InvalidArgumentError("The path of the root is empty: give one, or set PULSARPY_ROOT.")
    return Path(text).expanduser().absolute()


def _storage_path(root: Path, cluster_id: str, record: PathRecord) -> StoragePath:
    return StoragePath(PathId(record.path_id), root / record.uri, cluster_id, record.label)


def _has_root_record(root: Path) -> bool:
    try:
        MetadataStore(root)
    except NotARootError:
        return False
    return True


def _cluster_id(root: Path, uris: Sequence[str]) -> str:
    """A fresh id, or the one that an attempt cut off before its metadata commit left on the root's own storage paths."""
    for uri in uris:
        identity = root / uri / IDENTITY_FILE
        if not Path(uri).is_absolute() and identity.exists():
            return str(json.loads(identity.read_bytes())["cluster_id"])
    return uuid.uuid4().hex
