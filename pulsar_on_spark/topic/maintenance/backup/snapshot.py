"""Copying the files of a live root, in such an order that nothing in the copy refers to a file that is missing in it.

Log entries of the metadata, their data files and segment files are written once, each under its own name. So a file
that exists in the copy with the same length need not be copied again. Only journal files that a broker writes to grow.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pulsar_on_spark.ledger.journal import sealing
from pulsar_on_spark.ledger.journal.files import fenced_name, file_directory, open_name
from pulsar_on_spark.ledger.journal.log import Copy, LogRecord, unended_fragments
from pulsar_on_spark.ledger.journal.register import log_record
from pulsar_on_spark.ledger.segments.restoring import restore_copy
from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, SealRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CopiesUnreachableError, CorruptSegmentError, StoragePathError
from pulsar_on_spark.model.ids import FileId, IncarnationId, JournalFileId, PathId, SegmentName
from pulsar_on_spark.storage.local_path import LocalPath
from pulsar_on_spark.storage.loss import CopyVerdict, in_words, summary, unreachable, verdict_on
from pulsar_on_spark.storage.permissions import copy_file, make_folders
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.progress import Progress

_TARGET_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_ENTRY = re.compile(r"(\d{20})\.json")
Paths = Mapping[PathId, LocalPath]


class VanishedError(Exception):
    """A file that the copied metadata name was deleted before it was copied, so the metadata must be copied again."""


def copy_table(source: Path, target: Path) -> None:
    """Copy a Delta table as of one of its versions. The caller must prevent clean-up meanwhile; commits do no harm.

    The log is copied first, because the data files of an entry exist before the entry.
    """
    log = source / "_delta_log"
    target_log = target / "_delta_log"
    make_folders(target_log)
    # The pointer to a checkpoint is copied before the listing is made, so that the listing includes the checkpoint.
    with suppress(FileNotFoundError):
        copy_file(log / "_last_checkpoint", target_log / "_last_checkpoint")
    names = os.listdir(log)
    entries = {int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))}
    whole = _run_of(entries, {int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")})
    for name in names:
        match = _ENTRY.fullmatch(name)
        if name.endswith(".checkpoint.parquet") or (match and int(match[1]) in whole):
            copy_once(log / name, target_log / name)
    for name in os.listdir(source):
        if name.endswith(".parquet"):
            copy_once(source / name, target / name)
    _copy_checksums(source, target)


def _run_of(entries: Collection[int], checkpoints: Collection[int]) -> range:
    """Return the numbers of the adjacent entries that form the log.

    An entry with a lower number was written by a writer that was suspended while the log was cleaned up. If two entries
    are being written, a listing may show the later one without the earlier one; the log then ends before both.
    """
    first = last = max((each for each in checkpoints if each in entries), default=min(entries, default=0))
    while first - 1 in entries:
        first -= 1
    while last + 1 in entries:
        last += 1
    return range(first, last + 1)


def _copy_checksums(source: Path, target: Path) -> None:
    """Copy the checksums of the entries and checkpoints that were copied."""
    copied = {path.name.removesuffix(".json").removesuffix(".parquet") for path in (target / "_delta_log").iterdir()}
    with suppress(FileNotFoundError, NotADirectoryError):  # older versions of this project wrote no checksums
        for path in (source / "_checksums").iterdir():
            if path.name in copied:
                make_folders(target / "_checksums")
                copy_once(path, target / "_checksums" / path.name)


def copy_segments(
    view: View, sources: Mapping[PathId, StoragePath], targets: Paths, progress: Progress
) -> list[FileId]:
    """Copy all copies of the files that the view names, unless the target has them already.

    A copy that cannot be read is left out if there is another one, from which repair restores it.

    Returns:
        The ids of the files in use whose copies are all missing or damaged.

    Raises:
        CopiesUnreachableError: no copy of a file can be read now, and a copy on an unreachable path may be good.
        OSError: the target cannot be written.
    """
    absent: list[FileId] = []
    files = view.all(FileRecord)
    for number, file in enumerate(files):
        progress("copy segments", number, len(files))
        # Copies on lost paths do not count.
        names = {PathId(path_id): name for path_id, name in file.names.items() if path_id in targets}
        problems: dict[PathId, Exception] = {}
        for path_id, name in names.items():
            try:
                _copy_any(file, name, sources[path_id], targets[path_id])
            except (CorruptSegmentError, CopiesUnreachableError, StoragePathError, FileNotFoundError) as error:
                problems[path_id] = error
        if problems and len(problems) == len(names) and file.replaced_at is None:
            verdict = summary(verdict_on(error, sources[path_id]) for path_id, error in problems.items())
            if verdict is CopyVerdict.UNREACHABLE:
                raise unreachable(f"File {file.file_id}", in_words(problems))
            absent.append(FileId(file.file_id))
    progress("copy segments", len(files), len(files))
    return absent


def _copy_any(file: FileRecord, name: SegmentName, source: StoragePath, target: LocalPath) -> None:
    if isinstance(source, LocalPath):
        _copy_segment(name, source, target)
    elif not target.has_segment(name):
        restore_copy(file, [source], target, name)


def _copy_segment(name: SegmentName, source: LocalPath, target: LocalPath) -> None:
    """Copy one copy of a segment file, and its sidecar.

    Raises:
        FileNotFoundError: the source is intact and has no such copy.
        CorruptSegmentError: the source's disk cannot read a part of it.
        StoragePathError: the source cannot be read now.
        OSError: the target cannot be written.
    """
    make_folders(target.segment_file(name).parent)
    source.check()
    try:
        with suppress(FileNotFoundError):  # a file of up to 16 batches has no sidecar
            copy_once(source.sidecar_file(name), target.sidecar_file(name))
        copy_once(source.segment_file(name), target.segment_file(name))
    except FileNotFoundError:
        source.check()  # else the disk was unmounted just now
        raise
    except OSError as error:
        if error.errno in _TARGET_IS_FULL:
            raise
        kind = CorruptSegmentError if error.errno == errno.EIO else StoragePathError
        raise kind(f"Segment file {source.segment_file(name)} cannot be copied ({error}).") from error


def copy_journals(view: View, sources: Paths, targets: Paths) -> bool:
    """Copy the journal files that are needed. Files that still grow are copied even if they were copied before.

    Returns:
        True if any journal files are needed.

    Raises:
        VanishedError: a file was trimmed and deleted meanwhile.
    """
    needed = [(record, copies) for record in view.all(IncarnationRecord) if (copies := _needed(view, record))]
    for record, copies in needed:
        log = log_record(record)
        growing = _growing(log)
        for copy in copies:
            if copy.path in targets:
                _copy_journal_file(record.incarnation, copy, sources, targets, again=copy in growing)
    return bool(needed)


def _needed(view: View, record: IncarnationRecord) -> set[Copy]:
    log = log_record(record)
    seal = view.get(SealRecord, record.incarnation)
    doomed = set() if seal is None else set(sealing.files_to_delete(log, seal.trimmed_before))
    return {copy for fragment in log.fragments for copy in fragment.copies} - doomed


def _growing(log: LogRecord) -> Collection[Copy]:
    return {copy for fragment in unended_fragments(log) for copy in fragment.copies}


def _copy_journal_file(incarnation: str, copy: Copy, sources: Paths, targets: Paths, *, again: bool) -> None:
    names = (IncarnationId(incarnation), JournalFileId(copy.file))
    source = file_directory(sources[copy.path].directory, *names)
    target = file_directory(targets[copy.path].directory, *names)
    try:
        sources[copy.path].check()
    except StoragePathError:
        return  # the path cannot be reached: recovery decides if the other copies are enough
    make_folders(target)
    for name in (open_name, fenced_name):
        with suppress(FileNotFoundError):
            if again:
                copy_file(name(source), name(target))
            else:
                copy_once(name(source), name(target))
            return
    raise VanishedError(f"journal file {copy.file}")


def copy_once(source: Path, target: Path) -> None:
    """Copy a file that never changes, unless the target exists with the same length."""
    size_bytes = source.stat().st_size
    with suppress(FileNotFoundError):
        if target.stat().st_size == size_bytes:
            return
    copy_file(source, target)


def sync_all(directories: Iterable[Path]) -> None:
    """Make all files and folders below these directories durable."""
    for directory in directories:
        for parent, _, names in os.walk(directory):
            for path in (*(Path(parent) / name for name in names), Path(parent)):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
