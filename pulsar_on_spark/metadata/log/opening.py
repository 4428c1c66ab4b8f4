"""The opening of a log: its newest intact checkpoint is read, then the chain of entries after it.

A gap in the chain is damage, with one exception: a power cut may lose the names of the last entries on a local disk, in
any order, before their writers have synced them. Entries after such a gap were never reported to a caller, so they are
set aside: moved to `metadata/set-aside`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from pulsar_on_spark.metadata.log.chain import DamagedEntryError, GapError, OvertakenError, follow
from pulsar_on_spark.metadata.log.checkpoints import (
    Listing,
    Snapshot,
    checkpoint_key,
    decode_checkpoint,
    list_log,
    pointed_checkpoint,
    read_checkpoint,
)
from pulsar_on_spark.metadata.log.entry import BEFORE_FIRST, BrokenEntryError, Entry, Tip, decode_entry, entry_key
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.reading_ahead import ReadingAhead
from pulsar_on_spark.metadata.log.requests import run
from pulsar_on_spark.model.errors import CorruptMetadataError

_LOGGER = logging.getLogger(__name__)
EMPTY = Snapshot(BEFORE_FIRST.version, {}, {}, {}, {})


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened log: the snapshot of a checkpoint, the entry of the snapshot's version, and the entries after it."""

    snapshot: Snapshot
    tip: Tip
    entries: list[Entry]

    def active(self) -> set[str]:
        """Return the names of the newest version's data files."""
        names = set(self.snapshot.files)
        for entry in self.entries:
            names.update(file.name for file in entry.added)
            names.difference_update(entry.removed)
        return names


def open_log(store: LogStore) -> Opened:
    """Read a log from its newest intact checkpoint on.

    Entries after a gap that a power cut has left are set aside in `metadata/set-aside`.

    Raises:
        OvertakenError: the log was cleaned up, or entries were set aside: open it again.
        ForeignEntryError: another program has written to the log.
        CorruptMetadataError: an entry is damaged or missing.
        ObjectsUnreachableError: the log cannot be read now.
    """
    reported = store.reported_version()  # read before the log, so that the log must have this entry
    snapshot, listing = _newest_snapshot(store)
    ahead = entries_ahead(store, listing, snapshot.version)
    try:
        tip = entry_of(store, snapshot.version).tip if snapshot.version >= 0 else BEFORE_FIRST
        entries = run(follow(tip, is_shared=store.is_shared), store, ahead.fetch)
        newest = entries[-1].version if entries else tip.version
        if newest < max(0, reported):
            raise GapError(newest + 1)
    except DamagedEntryError as error:
        raise damaged(store, entry_key(error.version), "is not what was written") from error
    except GapError as error:
        # If a clean-up came between the listing and the reading, there is a newer checkpoint.
        if _newest_snapshot(store)[0].version > snapshot.version:
            raise OvertakenError(f"entry {error.version} was cleaned up") from error
        _close_gap(store, error.version)
        raise OvertakenError(f"the entries behind entry {error.version} were set aside") from error
    store.note_whole()
    return Opened(snapshot, tip, entries)


def damaged(store: LogStore, key: str, fault: str) -> CorruptMetadataError:
    """Return the error for an object of a log that is missing or damaged.

    `fault` is the predicate of its sentence, for example "is missing".
    """
    what, remedy = (
        ("history", "restore the table from a copy")
        if store.is_shared
        else ("metadata", "restore the root's metadata from a backup into an empty folder")
    )
    return CorruptMetadataError(
        f"The {what} table {store.place} is damaged, because {key} {fault}, and nothing in it was changed: check the "
        f"disk and {remedy}."
    )


def _newest_snapshot(store: LogStore) -> tuple[Snapshot, Listing]:
    """Read the newest intact checkpoint of this project; an empty snapshot if the log still has its first entry.

    In a log to which other programs may write, their newest checkpoint is used if this project has no intact one and
    the first entry is deleted.

    Returns:
        The snapshot, and the listing in which its checkpoint was found.

    Raises:
        OvertakenError: the checkpoints were cleaned up before they could be read.
        CorruptMetadataError: all checkpoints are damaged.
    """
    pointed = pointed_checkpoint(store.objects)
    starts = [-1] if pointed is None else [pointed - 1, -1]
    for start in starts:  # the pointer may be wrong
        listing = list_log(store.objects, start)
        for version in reversed(listing.checkpoints):
            snapshot = read_checkpoint(store.objects, version)
            if snapshot is not None:
                return snapshot, listing
            _LOGGER.info("Checkpoint %s of %s is not used, because it is unfinished or damaged", version, store.place)
    if listing.checkpoints and listing.entries[:1] != (0,):
        if list_log(store.objects, -1).checkpoints != listing.checkpoints:
            raise OvertakenError("the checkpoints were replaced by a newer one")
        foreign = _foreign_snapshot(store, listing) if store.is_shared else None
        if foreign is None:
            raise damaged(store, checkpoint_key(listing.checkpoints[-1]), "is not what was written")
        return foreign, listing
    return EMPTY, listing


def _foreign_snapshot(store: LogStore, listing: Listing) -> Snapshot | None:
    """Read the newest checkpoint that another program has written, which has no checksum; None if none can be read.

    It is the only beginning of a log that another program has cleaned up.
    """
    for version in reversed(listing.checkpoints):
        fetched = store.objects.fetch(checkpoint_key(version))
        with suppress(pa.ArrowException, OSError, KeyError, ValueError, TypeError):
            if fetched is not None:
                return decode_checkpoint(version, fetched.content)
    return None


def entry_of(store: LogStore, version: int) -> Entry:
    """Read the entry with a checkpoint's version, which is not deleted before the checkpoint.

    Raises:
        GapError: the entry was cleaned up after the checkpoint was read.
        CorruptMetadataError: the entry is damaged.
    """
    entry = read_entry(store, version)
    if entry is None:
        raise GapError(version)
    return entry


def read_entry(store: LogStore, version: int) -> Entry | None:
    """Read one entry; None if it is absent.

    Raises:
        CorruptMetadataError: the entry is damaged.
    """
    fetched = store.objects.fetch(entry_key(version))
    try:
        return None if fetched is None else decode_entry(version, fetched.content, is_shared=store.is_shared)
    except BrokenEntryError as error:
        raise damaged(store, entry_key(version), "is not what was written") from error


def legible_entries(store: LogStore, versions: Iterable[int]) -> Iterator[Entry]:
    """Yield the entries of these versions, without those that are absent or damaged."""
    for version in versions:
        with suppress(CorruptMetadataError):
            entry = read_entry(store, version)
            if entry is not None:
                yield entry


def entries_ahead(store: LogStore, listing: Listing, version: int) -> ReadingAhead:
    """Return a reader of the listed entries after a version, which are read in order."""
    return ReadingAhead(store, (entry_key(entry) for entry in listing.entries if entry > version))


def _close_gap(store: LogStore, missing: int) -> None:
    """Move the entries after a gap out of the log (`LogStore.set_aside`), if a power cut explains the gap.

    Args:
        store: The log.
        missing: The number of the first missing entry.

    Raises:
        OvertakenError: another process holds the lock, or has closed the gap.
        CorruptMetadataError: a power cut does not explain the gap.
    """
    with store.housekeeping() as is_alone:
        if not is_alone:
            raise OvertakenError("another process cleans up")
        listing = list_log(store.objects, missing - 1)
        if listing.entries[:1] == (missing,):
            raise OvertakenError("the log is whole")
        if not listing.entries and 0 <= store.reported_version() < missing:
            raise OvertakenError("the gap was closed meanwhile")
        behind = list(legible_entries(store, listing.entries))
        if len(behind) < len(listing.entries) or not _is_power_cut(store, missing, behind):
            raise damaged(store, entry_key(missing), "is missing")
        keys = [entry_key(entry.version) for entry in behind]
        keys += map(checkpoint_key, listing.checkpoints)
        aside = store.set_aside(keys)
    _LOGGER.warning(
        "The metadata table %s ended in a gap after a power cut: %d entries behind it, which were never reported, were "
        "moved to %s.",
        store.place,
        len(behind),
        aside,
    )


def _is_power_cut(store: LogStore, missing: int, behind: list[Entry]) -> bool:
    """Return True if a power cut explains a gap, and certainly no entry after the gap was reported to a caller."""
    # A writer syncs the folder's names after each entry, so its second entry proves that no earlier name was lost.
    writers = {entry.writer for entry in behind}
    is_unreported = 0 <= store.reported_version() < missing and len(writers) == len(behind) > 0
    is_chained = all(entry.previous is not None for entry in behind)
    return is_unreported and is_chained and store.lost_names({entry.boot for entry in behind})
