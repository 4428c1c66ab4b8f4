"""The open root.

A root is a folder or a prefix of an object store with metadata, leases, reports and, by default, storage paths.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, cast

from pulsar_on_spark.ledger.journal.places import JournalPath, is_on_objects
from pulsar_on_spark.ledger.segments.segment_writer import FileNotWrittenError
from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import (
    InvalidArgumentError,
    MetadataError,
    NotARootError,
    RootExistsError,
)
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.quorum import DEFAULT_QUORUM, Quorum
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.health import PathHealth, PathRole
from pulsar_on_spark.storage.leases.contract import LeaseStore
from pulsar_on_spark.storage.probe import examine
from pulsar_on_spark.storage.root_place import BROKERS, LOADS, RootPlace, consumers_of, lease_store, parse_place
from pulsar_on_spark.storage.storage_path import PathFailure, StoragePath
from pulsar_on_spark.topic.catalog import root_creation
from pulsar_on_spark.topic.catalog.path_records import journal_paths, segment_path, storage_path, uri_of

log = logging.getLogger(__name__)

_MAX_SHARED = 8
_shared: dict[tuple[type[RootHandle], RootPlace], tuple[object, RootHandle]] = {}


class RootHandle:
    """An open root: its metadata store and its storage paths.

    Attributes:
        place: The root's folder or URL.
        store: The metadata.
        cluster_id: The root's identity.
        quorum: The default quorum of all topics.
    """

    def __init__(self, place: RootPlace) -> None:
        """Open the root in a folder or below a URL.

        Raises:
            NotARootError: the folder or prefix does not exist, or is not a root.
            FormatVersionError: a newer version wrote it.
            StorageError: the object store cannot be reached now.
        """
        if isinstance(place, Path) and not place.exists():
            raise NotARootError(f"Root {place} does not exist: make it with `pulsarpy init {place}`, or write to it.")
        self.place = place
        self.store = MetadataStore(place)
        self.cluster_id = self.store.root_record.cluster_id
        self.quorum = Quorum.parse(self.store.root_record.quorum)

    @classmethod
    def open(cls, path: str | RootPlace) -> Self:
        """Open an existing root, given as a path or URL (errors as `RootHandle`)."""
        return cls(parse_place(path))

    @classmethod
    def create(
        cls,
        path: str | RootPlace,
        storage_paths: Sequence[str | RootPlace] = (),
        quorum: Quorum | None = None,
        file_mode: int = permissions.PRIVATE,
    ) -> Self:
        """Create a root, or finish a creation that was interrupted.

        Args:
            path: An absent path, an empty folder, or a URL of an object store with nothing below it.
            storage_paths: One or more directories or URLs, on different disks if the data are to survive the loss of a
                disk; by default `storage/0` to `storage/<ensemble - 1>` inside the root, in a folder at least three.
            quorum: The default quorum of all topics; None for 3/3/2 in a folder, and 1/1/1 on an object store, which
                keeps copies by itself.
            file_mode: The permissions of a local root's files: 0o600, or 0o660 to let the folder's group write, too.
                Folders get 0700 or 2770, also existing ones if they belong to this user.

        Raises:
            NotARootError: the folder or prefix has other files.
            RootExistsError: there is a root already.
            InvalidArgumentError: there are fewer different storage paths than the ensemble needs.
            UnsuitableStoreError: the object store lacks a guarantee that the engine relies on.
            StorageError: a storage path contains other files, or cannot be written.
        """
        place = parse_place(path)
        if quorum is None:
            quorum = DEFAULT_QUORUM if isinstance(place, Path) else root_creation.OBJECT_QUORUM
        paths = [parse_place(each) for each in storage_paths]
        if not isinstance(place, Path) and any(isinstance(each, Path) for each in paths):
            raise InvalidArgumentError(
                f"The root {place} needs storage paths on object stores: give URLs, and add directories for journals "
                "with `pulsarpy storage add DIRECTORY --role journal`."
            )
        uris = [uri_of(place, each) for each in paths] or root_creation.default_uris(place, quorum)
        if len(set(uris)) < max(quorum.ensemble, len(uris)):
            raise InvalidArgumentError(
                f"Quorum {quorum} needs {quorum.ensemble} different storage paths, and {len(set(uris))} are given: "
                "give each --storage-path once, give more of them or a smaller --quorum."
            )
        root_creation.create_root(place, uris, quorum, file_mode)
        return cls(place)

    @classmethod
    def open_or_create(cls, path: str | RootPlace) -> Self:
        """Open a root. If there is nothing at its path or URL, create it, with a warning in the log."""
        place = parse_place(path)
        if cls.is_occupied(place):
            return cls.shared(place)
        try:
            created = cls.create(place)
        except RootExistsError:  # another process created it first
            return cls.shared(place)
        log.warning("Created the root %s: there was nothing at this path.", place)
        return created

    @classmethod
    def is_occupied(cls, place: RootPlace) -> bool:
        """Return True if a folder or prefix has a root or foreign files, so that a write must not create a root in it.

        A root whose creation is in progress, or was interrupted, does not count yet.
        """
        if (is_other := root_creation.is_foreign(place)) is not None:
            return is_other
        try:
            cls.shared(place)
        except NotARootError:
            return False
        return True

    @classmethod
    def shared(cls, place: RootPlace) -> Self:
        """Return the open root that this process shares; it is opened at first use (errors as `RootHandle`).

        A root that was replaced on disk is opened again.
        """
        identity = cls._identity(place)
        cached = _shared.get((cls, place))
        if cached is None or cached[0] != identity:
            while len(_shared) >= _MAX_SHARED:
                _shared.pop(next(iter(_shared)))
            cached = _shared[cls, place] = (identity, cls(place))
        return cast("Self", cached[1])

    @staticmethod
    def _identity(place: RootPlace) -> tuple[int, ...] | None:
        """Return a value that changes if the root is replaced or the process is forked; None if there is no root."""
        if not isinstance(place, Path):
            return (os.getpid(),)
        try:
            status = (place / "metadata" / "main" / "_delta_log").stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, os.getpid()

    @property
    def path(self) -> Path:
        """The folder of a local root.

        Raises:
            InvalidArgumentError: the root is on an object store.
        """
        if isinstance(self.place, Path):
            return self.place
        raise InvalidArgumentError(
            f"The root {self.place} is on an object store, and this operation needs a root in a folder: use one in a "
            "folder."
        )

    def consumer_leases(self, subscription: str) -> LeaseStore:
        """Return the leases of a subscription's consumers; the subscription has the same leases in all its topics."""
        return lease_store(self.place, consumers_of(subscription))

    def broker_leases(self) -> LeaseStore:
        """Return the leases of brokers, whose holders are incarnation ids."""
        return lease_store(self.place, BROKERS)

    def broker_loads(self) -> LeaseStore:
        """Return the load reports of brokers, whose holders are incarnation ids."""
        return lease_store(self.place, LOADS)

    def storage_paths(self, view: View) -> dict[PathId, StoragePath]:
        """Return all storage paths by id, without retired ones."""
        return {
            PathId(record.path_id): segment_path(self.place, self.cluster_id, record)
            for record in view.all(PathRecord)
            if record.state != "retired"
        }

    def current_storage_paths(self) -> dict[PathId, StoragePath]:
        """Return the storage paths by id from the newest metadata (raises `MetadataError`).

        Readers that outlive a view use them.
        """
        return self.storage_paths(self.store.view())

    def journal_paths(self, view: View) -> dict[PathId, JournalPath]:
        """Return the storage paths by id that may hold journals, without retired ones."""
        return journal_paths(self.storage_paths(view))

    def current_journal_paths(self) -> dict[PathId, JournalPath]:
        """Return the storage paths by id that may hold journals, from the newest metadata (raises `MetadataError`)."""
        return self.journal_paths(self.store.view())

    def examine_paths(self, view: View) -> dict[PathId, PathHealth]:
        """Return the health of each storage path, without retired ones; blocks while a disk hangs.

        The claims on cold paths are not read: see `holds.examine_paths`.
        """
        records = {PathId(record.path_id): record for record in view.all(PathRecord)}
        return {
            path_id: replace(
                examine(path, records[path_id].reason),
                role=records[path_id].role,
                state=records[path_id].state,
                is_checked=records[path_id].check_since is None,
            )
            for path_id, path in self.storage_paths(view).items()
        }

    def writable_paths(self, view: View) -> list[StoragePath]:
        """Return the storage paths to write segments to, with their free bytes as weights.

        Paths that failed before are included only if there are fewer writable paths than the ack quorum.
        """
        return [path.measured() for path in self._to_write(view, "segments")]

    def writable_journal_paths(self, view: View) -> list[JournalPath]:
        """Return the storage paths to write journals to (see `writable_paths`).

        These are only disks of this host, which have the lowest latency, if there are enough for the ack quorum.
        Otherwise object stores are used, too.
        """
        paths = [path.measured() for path in self._to_write(view, "journal") if not path.is_elsewhere]
        disks = [path for path in paths if not is_on_objects(path)]
        return disks if len(disks) >= self.quorum.ack else disks + [path for path in paths if is_on_objects(path)]

    def announce_journals(self, paths: Iterable[JournalPath]) -> None:
        """Record that the root has journals on object stores, before the first such journal file is created.

        Args:
            paths: The storage paths that a journal is about to write to.

        Raises:
            MetadataError: the metadata cannot be read or written.
        """
        if not any(map(is_on_objects, paths)):
            return

        def decide(view: View) -> Change | None:
            puts, moves = features.using(view, features.OBJECT_JOURNALS)
            return Change(puts=list(puts), keys=dict(moves)) if puts else None

        self.store.commit(decide)

    def _to_write(self, view: View, role: PathRole) -> list[JournalPath]:
        records = [record for record in view.all(PathRecord) if record.role in ("both", role)]
        chosen = [record for record in records if record.state == "writable"]
        if len(chosen) < self.quorum.ack:
            chosen += [record for record in records if record.state == "read-only" and record.reason]
        return [storage_path(self.place, self.cluster_id, record) for record in chosen]

    def mark_failed(self, failures: Sequence[PathFailure]) -> None:
        """Mark storage paths that failed during a write as read-only, until `maintain` finds them healthy again."""
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
        """Mark storage paths as failed (see `mark_failed`) if a file written in this block gets too few copies.

        The block's `FileNotWrittenError` is raised in any case. If the mark cannot be committed, the next write tries
        the failed paths again.
        """
        try:
            yield
        except FileNotWrittenError as error:
            try:
                self.mark_failed(error.failures)
            except MetadataError as unmarked:
                log.warning("Storage paths could not be marked as failed: %s", unmarked)
            raise
