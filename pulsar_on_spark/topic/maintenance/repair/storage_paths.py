"""An operator's changes to storage paths: add, drain, resume, give up as lost, retire.

    writable <-> draining -> retired        all copies on it are first copied to other paths
    any but retired -> lost -> retired      its copies do not count, and are replaced from other copies
    lost -> writable                        its disk is back (`add` recognises it by its identity file): its copies
                                            count after they were read in full
    writable -> read-only                   a write or an audit found that it fails
    read-only -> writable                   `maintain` found it healthy again

All changes are committed under the path's key. Ids are never reused: a retired path keeps its record.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pulsar_on_spark.ledger.journal import sealing
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.log.tables import HISTORY
from pulsar_on_spark.metadata.records import (
    FileRecord,
    HistoryTableRecord,
    IncarnationRecord,
    PathRecord,
    RootRecord,
    SealRecord,
    WriteRecord,
)
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError, StoragePathError, WrongPathError
from pulsar_on_spark.model.ids import PathId, WriteId
from pulsar_on_spark.storage import permissions
from pulsar_on_spark.storage.health import APART, PathRole
from pulsar_on_spark.storage.identity import IDENTITY_NAME, HiddenPathError, Identity
from pulsar_on_spark.storage.objects.probe import probe
from pulsar_on_spark.storage.open_files import processes_with_open_files
from pulsar_on_spark.storage.root_place import RootPlace, objects_at, parse_place
from pulsar_on_spark.storage.segment_objects import translated
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.path_records import place_of, storage_path, uri_of
from pulsar_on_spark.topic.catalog.policies.drivers import drivers_of_files
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.claims import take_over, try_claim
from pulsar_on_spark.topic.maintenance.files.collect import write_ids
from pulsar_on_spark.topic.maintenance.repair.plan import has_drivers

log = logging.getLogger(__name__)

_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class PathUse:
    """The files on a path according to the metadata.

    Attributes:
        copies: Number of files that have a copy on the path.
        sole_copies: Number of these files that have no other copy on a path that is neither lost nor retired.
        fragments: Number of journal fragments with a file on the path that may not be deleted yet.
        histories: Number of topics whose history tables are on the path.
    """

    copies: int
    sole_copies: int
    fragments: int
    histories: int


def use_of(view: View, path_id: PathId) -> PathUse:
    """Return the files on a path according to the metadata."""
    given_up = {record.path_id for record in view.all(PathRecord) if record.state in ("lost", "retired")}
    files = [file for file in view.all(FileRecord) if path_id in file.copies and file.replaced_at is None]
    sole = sum(not set(file.copies) - given_up - {path_id} for file in files)
    histories = sum(record.path_id == path_id for record in view.all(HistoryTableRecord))
    return PathUse(len(files), sole, _fragments_on(view, path_id), histories)


def add(
    root: RootHandle, directory: str | RootPlace, label: str = "", *, role: PathRole = "both", profile: str = ""
) -> PathRecord:
    """Add a directory or URL as a storage path. If it has a lost path, make that path writable again.

    A running broker begins to write to the path after its next read of the metadata.

    Args:
        root: The root.
        directory: An empty or absent directory, a URL of an object store with nothing below it, or the directory or URL
            of a lost path.
        label: The path's rack; copies of a file are put under different labels.
        role: The kind of files that the path is for. In a root on an object store, a directory is always for journals.
            In a local root, a URL with the role `both` is for segments. A cold path gets offloaded segments only,
            a history path tables of histories only.
        profile: The name of the profile with a URL's options; "" for the profile that matches the URL, if any.

    Raises:
        InvalidArgumentError: the directory or URL is a storage path of the root already, or was retired from it, or
            cannot have this role; or it has a lost path with another role.
        UnsuitableStoreError: the object store lacks a guarantee that the engine relies on.
        StorageError: the directory or URL has other files, or cannot be written.
        MetadataError: the metadata cannot be read or written.
    """
    place = parse_place(directory, profile)
    if not isinstance(place, Path):
        if role == "both" and isinstance(root.place, Path):
            role = "segments"  # journals stay on the disks of a local root
        probe(objects_at(place), str(place))
    elif not isinstance(root.place, Path):
        if role not in ("both", "journal"):
            raise InvalidArgumentError(
                f"The directory {place} can hold journals only, because the root is on an object store and other hosts "
                "cannot read the directory: give the role journal, or a URL."
            )
        role = "journal"
    host = "" if isinstance(root.place, Path) or not isinstance(place, Path) else socket.gethostname()
    new = _NewPath(place, label, role, host)
    view = root.store.view()
    known = next((each for each in view.all(PathRecord) if _is_at(root, each, place)), None)
    found = _identity(root, place)
    if known is not None and known.state not in ("lost", "retired"):
        if found == known.path_id and host and known.host != host:
            return _changed(root, known.path_id, lambda _, now: now.model_copy(update={"host": host}))
        raise InvalidArgumentError(
            f"{place} is storage path {known.path_id} of {root.place} already: give another directory or URL."
        )
    former = None if found is None else view.get(PathRecord, str(found))
    if former is None:
        added = _added(root, new, found)
        return _claimed(root, added) if role in APART else added
    if former.state == "lost":
        return _taken_back(root, former, new)
    raise InvalidArgumentError(
        f"{place} has storage path {former.path_id} of {root.place}, which is {former.state}: give another directory "
        "or URL, or empty this one."
    )


@dataclass(frozen=True, slots=True)
class _NewPath:
    """A path to add: its folder or URL (`place`), and the fields of its record."""

    place: RootPlace
    label: str
    role: PathRole
    host: str

    def record(self, root: RootHandle, path_id: int) -> PathRecord:
        """Return the record of a new path."""
        profile = "" if isinstance(self.place, Path) else self.place.profile
        return PathRecord(
            path_id=path_id,
            uri=uri_of(root.place, self.place),
            profile=profile,
            host=self.host,
            role=self.role,
            label=self.label,
        )


def drain(root: RootHandle, path_id: int) -> PathRecord:
    """Drain a path: no new copies are written to it, and `repair` copies its copies to other paths.

    A draining history path gets no new tables. Tables that are on it stay, and are still extended by builds.

    Raises:
        InvalidArgumentError: there is no such path, it is lost or retired, too few other paths are writable, or no
            other cold path can take a file of a cold path.
        MetadataError: the metadata cannot be read or written.
    """

    def drained(view: View, record: PathRecord) -> PathRecord:
        _require(record, ("writable", "read-only", "draining"), "drained")
        is_cold = record.role == "cold"
        others = [
            each
            for each in view.all(PathRecord)
            if each.state == "writable"
            and each.path_id != path_id
            and (each.role == "cold" if is_cold else each.role not in APART)
        ]
        if is_cold and (stuck := _stuck(view, path_id, [each.label for each in others])):
            drivers = ", ".join(sorted(set().union(*stuck)))
            label = f" and the label that policies name as their driver ({drivers})" if drivers else ""
            raise InvalidArgumentError(
                f"Storage path {path_id} cannot be drained, because no other cold path is writable and can take "
                f"{len(stuck)} of its files: add one with `pulsarpy storage add --role cold`{label} first."
            )
        if record.role not in APART and len(others) < root.quorum.ack:
            raise InvalidArgumentError(
                f"Storage path {path_id} cannot be drained, because only {len(others)} other paths are writable and "
                f"quorum {root.quorum} needs {root.quorum.ack}: add storage paths first."
            )
        return record.model_copy(update={"state": "draining"})

    return _changed(root, path_id, drained, keys.FILES)


def _stuck(view: View, path_id: int, labels: Collection[str]) -> list[Collection[str]]:
    """Return the offload drivers of each file on a cold path that no cold path with one of these labels may take."""
    drivers = drivers_of_files(view)
    files = (file for file in view.all(FileRecord) if path_id in file.copies and file.replaced_at is None)
    named = (drivers.get(file.file_id, ()) for file in files)
    return [each for each in named if not any(has_drivers(label, each) for label in labels)]


def resume(root: RootHandle, path_id: int) -> PathRecord:
    """Make a draining or failed path writable again. A cold or history path is claimed, even from another root.

    If an interrupted retirement has hidden the path's identity file, the file gets its name back.

    Raises:
        InvalidArgumentError: there is no such path, or it is lost or retired.
        StoragePathError: the path cannot be reached, or its directory or URL has another storage path.
        MetadataError: the metadata cannot be read or written.
    """
    known = _known(root.store.view(), path_id)
    _require(known, ("writable", "read-only", "draining"), "written to again")
    path = root.storage_paths(root.store.view())[PathId(path_id)]

    def resumed(view: View, record: PathRecord) -> PathRecord:
        _require(record, ("writable", "read-only", "draining"), "written to again")
        is_doubted = record.state == "read-only" and record.role not in APART
        since = datetime.now(UTC) if is_doubted else record.check_since
        return record.model_copy(update={"state": "writable", "reason": "", "failed_at": None, "check_since": since})

    try:
        path.check()
    except HiddenPathError:
        # The commit comes first: if the retirement still runs, it must not find the path unused and visible.
        _changed(root, path_id, resumed)
        path.show_identity()
        path.check()
    if known.role in APART:
        take_over(root, path)
    return _changed(root, path_id, resumed)


def give_up(root: RootHandle, path_id: int, *, force: bool = False) -> PathRecord:
    """Mark a path as lost: its copies do not count, and are replaced from the other copies.

    Raises:
        InvalidArgumentError: there is no such path, it is retired, or (without `force`) it has the only copies of
            files, or histories.
        MetadataError: the metadata cannot be read or written.
    """

    def lost(view: View, record: PathRecord) -> PathRecord:
        _require(record, ("writable", "read-only", "draining", "lost"), "given up as lost")
        used = use_of(view, PathId(path_id))
        if (used.sole_copies or used.histories) and not force:
            what = f"{used.histories} histories" if used.histories else f"the only copies of {used.sole_copies} files"
            raise InvalidArgumentError(
                f"Storage path {path_id} has {what}, which are lost with it: bring it back, or force the change to "
                "give them up."
            )
        return record.model_copy(update={"state": "lost", "check_since": None})

    # A commit that deletes other copies of a file has the key of files: one of the two decides again.
    return _changed(root, path_id, lost, keys.FILES)


def retire(root: RootHandle, path_id: int) -> PathRecord:
    """Remove a path from the root for good, if nothing needs it.

    Raises:
        InvalidArgumentError: there is no such path; it is neither draining nor lost; files or journals still need it;
            a write that began before the drain is not committed yet; or the path is draining and a process of this host
            has files on it open.
        StoragePathError: the path's identity file cannot be removed.
        MetadataError: the metadata cannot be read or written.
    """
    view = root.store.view()
    record = _known(view, path_id)
    _require(record, ("draining", "lost"), "retired")
    _require_unused(view, record)
    path = root.storage_paths(view)[PathId(path_id)]
    if record.state == "draining":
        _require_closed(path)
    # Without the identity, no process begins a file on the path. Files begun before are in the listing made below.
    is_hidden = _hide_identity(root, path, record)
    try:
        if is_hidden:
            _require_no_writes(root, path)
        if record.state == "draining":
            _require_closed(path)
            if is_hidden:
                _require_no_tables(path)
        return _changed(root, path_id, lambda view, now: _retired(view, now), keys.FILES)
    except BaseException:
        if is_hidden:
            path.show_identity()
        raise


def _retired(view: View, record: PathRecord) -> PathRecord:
    if record.state == "retired":
        return record
    _require(record, ("draining", "lost"), "retired")
    _require_unused(view, record)
    return record.model_copy(update={"state": "retired", "check_since": None})


def _require_unused(view: View, record: PathRecord) -> None:
    used = use_of(view, PathId(record.path_id))
    if used.histories:
        raise InvalidArgumentError(
            f"Storage path {record.path_id} is still needed by {used.histories} histories: delete them with `pulsarpy "
            "history delete`, or their topics."
        )
    if used.copies or used.fragments:
        raise InvalidArgumentError(
            f"Storage path {record.path_id} is still needed by {used.copies} files and {used.fragments} journal "
            "fragments: run `pulsarpy storage repair`, and `pulsarpy maintain` for journals of brokers that have ended "
            "and for offloaded files, whose copies stay until the deletion lag is over."
        )


def _require_no_writes(root: RootHandle, path: StoragePath) -> None:
    """Check that all writes with files on the path are committed or aborted, because others may still be committed."""
    listed = {stored.name.write_id for stored in path.unchecked_segment_files(time.time())}
    under_way = _undecided_writes(root.store.view(durable=True), listed)
    if under_way:
        raise InvalidArgumentError(
            f"{len(under_way)} writes have files on {path} and are not committed yet: wait for them, or run `pulsarpy "
            "maintain --abort-after` to abort dead ones."
        )


def _undecided_writes(view: DurableView, listed: Collection[WriteId]) -> set[WriteId]:
    known = write_ids(view)
    return {each for each in listed if each not in known and view.get(WriteRecord, each) is None}


def _require_no_tables(path: StoragePath) -> None:
    """Check that a path has no history tables: those of deleted topics are not deleted from a retired path."""
    with translated():
        has_tables = next(iter(objects_at(path.place).list_after(HISTORY)), None) is not None
    if has_tables:
        raise InvalidArgumentError(
            f"{path} still has history tables of deleted topics: run `pulsarpy maintain` twice, more than ten minutes "
            "apart, to delete them."
        )


def _require_closed(path: StoragePath) -> None:
    """Refuse a path on which a process has files open, because its disk could not be unmounted."""
    if not isinstance(path.place, Path):
        return
    found = processes_with_open_files(path.place)
    if found:
        files = " and ".join(f"process {process} has {count} files" for process, count in sorted(found.items()))
        raise InvalidArgumentError(
            f"On {path}, {files} open: wait a minute until brokers have closed unused files, or end the process."
        )


def _hide_identity(root: RootHandle, path: StoragePath, record: PathRecord) -> bool:
    """Hide the identity file of a path, and return True.

    Return False if a lost path cannot be reached or its directory or URL has another path. Return False, too, for a
    path that another copy of the root has claimed: its identity file stays, and this root begins no files on it.

    Raises:
        StoragePathError: a draining path cannot be reached, so that uncommitted writes may have files on it.
    """
    try:
        if record.role in APART and _is_foreign(root, path):
            return False
        is_hidden = path.hide_identity()
    except StoragePathError:
        if record.state == "draining":
            raise
        return False
    if not is_hidden and record.state == "draining":
        raise StoragePathError(
            f"The directory or URL of {path} has another storage path now: bring the disk of storage path "
            f"{record.path_id} back, or run `pulsarpy storage lost {record.path_id}`."
        )
    return is_hidden


def _is_foreign(root: RootHandle, path: StoragePath) -> bool:
    """Claim a path for this root. Return True if it is another root's (raises as `try_claim`)."""
    try:
        return bool(try_claim(root, path))
    except WrongPathError:  # for example because an interrupted retirement has hidden the identity
        return False


# --- adding ---


def _added(root: RootHandle, new: _NewPath, found: int | None) -> PathRecord:
    """Add a new path. Its identity file is written before the commit, so that every path in the metadata has one.

    `found` is the path id in an identity file of this root that is already at the path; None if there is none.
    """
    mode = permissions.mode_of(root.place) if isinstance(root.place, Path) else None
    if found is not None:
        _require_empty(storage_path(root.place, root.cluster_id, new.record(root, found)))
    for _ in range(_ATTEMPTS):
        view = root.store.view()
        path_id = _next_id(view)
        record = new.record(root, path_id)
        if found is not None and found != path_id:
            _take_identity(root, view, new.place, found, path_id)
        storage_path(root.place, root.cluster_id, record).create(mode=mode)
        if _is_committed(root, record):
            return record
        found = path_id
    raise StoragePathError(
        f"{new.place} could not be added in {_ATTEMPTS} attempts, because other processes add storage paths, too: "
        "try again."
    )


def _claimed(root: RootHandle, added: PathRecord) -> PathRecord:
    """Claim a new path, so that a copy that is made of the root later is recognized as a copy.

    Return the path's record.
    """
    try:
        take_over(root, root.current_storage_paths()[PathId(added.path_id)])
    except StoragePathError as error:
        raise StoragePathError(
            f"Storage path {added.path_id} is added, but not claimed ({error}): run `pulsarpy storage resume "
            f"{added.path_id}`."
        ) from error
    return _known(root.store.view(), added.path_id)


def _require_empty(path: StoragePath) -> None:
    """Check that a path that is not in the metadata, but has an identity of this root, has no segment files.

    An interrupted attempt to add the path leaves no segment files. A path with segment files belongs to another copy of
    the root, such as the copy that a restored backup replaces, and may have the only copies of that root's files.
    """
    if next(path.unchecked_segment_files(time.time()), None) is not None:
        raise InvalidArgumentError(
            f"{path} has segment files that may be the only copies of another copy of this root, such as one that a "
            "backup has replaced: give another directory or URL, or empty this one."
        )


def _take_identity(root: RootHandle, view: View, place: RootPlace, found: int, path_id: int) -> None:
    """Overwrite the identity of an interrupted attempt, or of an attempt whose id another process took first."""
    if view.get(PathRecord, str(found)) is not None and _identity(root, place) == found:
        raise InvalidArgumentError(
            f"{place} is storage path {found} of {root.place} already: give another directory or URL."
        )
    objects = objects_at(place)
    fetched = objects.fetch(IDENTITY_NAME)
    if fetched is not None:
        objects.replace(IDENTITY_NAME, Identity(root.cluster_id, PathId(path_id)).encode(), fetched.version)


def _is_committed(root: RootHandle, record: PathRecord) -> bool:
    done = False

    def decide(view: View) -> Change | None:
        nonlocal done
        now = view.get(PathRecord, record.record_id)
        done = now is None or now == record
        if now is not None:
            return None
        puts, moves = _features(view, record)
        return Change(puts=[record, *puts], keys={keys.path(record.path_id): None, **moves})

    root.store.commit(decide)
    return done


def _features(view: View, record: PathRecord) -> tuple[Sequence[RootRecord], Mapping[str, None]]:
    """Return the changes that add a feature to the root, if the path needs one (as `features.using`); else none."""
    if record.role == "cold":
        return features.using(view, features.COLD_PATHS)
    if record.role == "history":
        return features.using(view, features.HISTORY_PATHS)
    is_plain = not record.host and record.role == "both"
    return ((), {}) if is_plain else features.using(view, features.OBJECT_PATHS)


def _taken_back(root: RootHandle, former: PathRecord, new: _NewPath) -> PathRecord:
    there = new.record(root, former.path_id)
    storage_path(root.place, root.cluster_id, there).check()

    def back(view: View, record: PathRecord) -> PathRecord:
        _require(record, ("lost",), "taken back")
        if record.role != new.role:
            raise InvalidArgumentError(
                f"{new.place} holds storage path {record.path_id} of {root.place}, which has the role {record.role} "
                f"and cannot get the role {new.role}: give `--role {record.role}`, or another directory or URL."
            )
        changed = {
            "state": "writable",
            "reason": "",
            "failed_at": None,
            "uri": there.uri,
            "profile": there.profile,
            "host": there.host,
            "label": there.label or record.label,
            "check_since": datetime.now(UTC),
        }
        return record.model_copy(update=changed)

    return _changed(root, former.path_id, back)


def _next_id(view: View) -> int:
    return max(record.path_id for record in view.all(PathRecord)) + 1


def _identity(root: RootHandle, place: RootPlace) -> int | None:
    """Return the path id in the identity file in a folder or below a URL.

    The result is None if it has no identity file of this root.
    """
    if isinstance(place, Path) and not place.is_dir():
        return None
    with suppress(StorageError):
        fetched = objects_at(place).fetch(IDENTITY_NAME)
        found = None if fetched is None else Identity.decode(fetched.content, str(place))
        return found.path_id if found is not None and found.cluster_id == root.cluster_id else None
    return None


def _is_at(root: RootHandle, record: PathRecord, place: RootPlace) -> bool:
    known = place_of(root.place, record)
    if isinstance(known, Path) and isinstance(place, Path):
        return os.path.realpath(known) == os.path.realpath(place)
    return str(known) == str(place)


# --- changing ---


def _known(view: View, path_id: int) -> PathRecord:
    record = view.get(PathRecord, str(path_id))
    if record is None:
        ids = ", ".join(str(each.path_id) for each in view.all(PathRecord) if each.state != "retired")
        raise InvalidArgumentError(f"There is no storage path {path_id}: give one of {ids}.")
    return record


def _require(record: PathRecord, states: Collection[str], what: str) -> None:
    if record.state not in states:
        raise InvalidArgumentError(
            f"Storage path {record.path_id} is {record.state} and cannot be {what}: only a path that is "
            f"{' or '.join(states)} can."
        )


def _changed(
    root: RootHandle, path_id: int, change: Callable[[View, PathRecord], PathRecord], *more_keys: str
) -> PathRecord:
    """Commit a changed record under the path's key and further keys, and return it; errors of `change` are raised."""
    changed: PathRecord | None = None

    def decide(view: View) -> Change | None:
        nonlocal changed
        record = _known(view, path_id)
        changed = change(view, record)
        if changed == record:
            return None
        return Change(puts=[changed], keys=dict.fromkeys((keys.path(path_id), *more_keys)))

    root.store.commit(decide)
    assert changed is not None, "a commit decides"
    return changed


def _fragments_on(view: View, path_id: PathId) -> int:
    """Return the number of journal fragments with a file on the path that has untrimmed frames, of any fragment."""
    count = 0
    for row in view.all(IncarnationRecord):
        record = log_record(row)
        seal = view.get(SealRecord, row.incarnation)
        doomed = set() if seal is None else set(sealing.files_to_delete(record, seal.trimmed_before))
        count += sum(
            any(copy.path == path_id and copy not in doomed for copy in fragment.copies)
            for fragment in record.fragments
        )
    return count
