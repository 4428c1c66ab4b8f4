"""Lookup of a file's copies in its current record, for readers and maintenance passes that work by older metadata.

Offloading, repair, drains and merges move files at any time. A copy that an older record names may therefore be missing
or bad although the file is intact. A reader or pass that finds such a copy reads the file's record again before it
reports the copy as bad, or reports the file as lost. If the record now names other copies, they are read instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError, PulsarpyError, SegmentGoneError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.reports import report_bad_copy
from pulsar_on_spark.storage.storage_path import PathTable
from pulsar_on_spark.topic.catalog.holds import require_held
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

log = logging.getLogger(__name__)

T = TypeVar("T")
OnBadCopy = Callable[[FileRecord, PathId, str], None]
"""Callback for a bad copy: it gets the file, the storage path and the problem."""

_MAX_MOVES: Final = 5
"""Maximum number of times that a file's copies are looked up again: passes that move files are minutes apart."""


def read_present(
    root: Callable[[], RootHandle],
    file: FileRecord,
    paths: PathTable,
    numbers: Sequence[int],
    columns: Sequence[str] | None,
    on_bad_copy: OnBadCopy,
    at_stake: str,
) -> Generator[pa.RecordBatch]:
    """Read batches of a file (see `read_batches`). If no copy is good, the file's current record decides on the error.

    Args:
        root: Function that returns the root; called only if no copy is good.
        file: The file's record, which may be old.
        paths: Returns the root's storage paths.
        numbers: The batches' numbers, ascending.
        columns: Names from `SEGMENT_SCHEMA`, or None for all.
        on_bad_copy: Called for each copy to report.
        at_stake: The content of the batches, for errors.

    Raises:
        SegmentGoneError: no copy is good, and either some copies are gone, or the file's current record names other
            copies. The caller looks up which file holds the entries now.
        CopiesUnreachableError: a copy may be good, but is on a path that cannot be reached, or that is not claimed by
            this root (see `holds`).
        CorruptSegmentError: every copy that the current record names is damaged.
        FormatVersionError, InvalidArgumentError: as `read_batches`.
        MetadataError, NotARootError: no copy is good, and the metadata cannot be read.
    """

    def report(path_id: PathId, reason: str) -> None:
        on_bad_copy(file, path_id, reason)

    try:
        yield from read_batches(file, paths, numbers, columns, report, at_stake=at_stake)
    except CorruptSegmentError as error:
        opened = root()
        view = opened.store.view()
        now = view.get(FileRecord, file.file_id)
        if now is None or now.replaced_at is not None or now.names != file.names:
            raise SegmentGoneError(f"{error} Its record names other copies now, or is gone: read it again.") from error
        require_held(opened, view, now)
        raise


def report_present(root: Callable[[], RootHandle], file: FileRecord, path_id: PathId, reason: str) -> None:
    """Report a copy that cannot be used, if the file's current record names it (see `report_bad_copy`).

    The report is dropped, with a warning in the log, if the metadata cannot be read.
    """
    try:
        opened = root()
        if not is_named(opened, file, path_id):
            return
    except (PulsarpyError, OSError) as error:
        log.warning(
            "Dropped a report of file %s on storage path %d, because the metadata cannot be read (%s): %s",
            file.file_id,
            path_id,
            error,
            reason,
            extra={"file": file.file_id, "path": path_id},
        )
        return
    report_bad_copy(opened.place, file.file_id, path_id, reason)


def with_present_copies(root: RootHandle, file: FileRecord, read: Callable[[FileRecord], T]) -> T:
    """Return the result of `read` for a file. If no copy is good, call it again with the file's current record.

    Args:
        root: The root.
        file: The file's record, which may be old.
        read: Reads the copies that its argument names.

    Raises:
        CorruptSegmentError: no copy is good that the file's current record names, or its last record if it was deleted.
        CopiesUnreachableError: a copy may be good, but is on a path that cannot be reached, or that is not claimed by
            this root (see `holds`).
        MetadataError: the metadata cannot be read.
    """
    for _ in range(_MAX_MOVES):
        try:
            return read(file)
        except (CorruptSegmentError, CopiesUnreachableError):
            view = root.store.view()
            now = view.get(FileRecord, file.file_id)
            if now is None or now.names == file.names:
                require_held(root, view, file)
                raise
            file = now
    return read(file)


def is_named(root: RootHandle, file: FileRecord, path_id: PathId) -> bool:
    """Return True if the current metadata name the file's copy on this path (raises `MetadataError`).

    See `names_copy`.
    """
    return names_copy(root.store.view(), file, path_id)


def names_copy(view: View, file: FileRecord, path_id: PathId) -> bool:
    """Return True if the file is in use in a view, with the same copy on this path as in `file`."""
    now = view.get(FileRecord, file.file_id)
    return now is not None and now.replaced_at is None and now.names.get(path_id) == file.names[path_id]
