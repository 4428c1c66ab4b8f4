"""Removal of old data files by the retention of a history table, and deletion of files that no version needs.

Retention removes whole files, the oldest first, so a row stays until all rows of its file are beyond the limits. A
removed file is deleted later, because frames that were planned before may still read it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pulsar_on_spark.history_table.table import FILE_NAME, MERGES, HistoryTable
from pulsar_on_spark.metadata.log.chain import ConflictError
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.policies import HistoryPolicies

KEEP_REMOVED_S: Final = 7 * 86_400.0
"""Seconds for which removed files are kept, for frames that still read them; the default of Delta's VACUUM."""
ABANDONED_S: Final = 86_400.0
"""Age in seconds at which a file of a failed build or merge is deleted."""
MERGED: Final = -2
"""Key of the number of merges in a mapping of partition indexes to generations."""
_ATTEMPTS: Final = 5
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgedFile:
    """A data file with the properties by which retention decides.

    Attributes:
        name: The file's name.
        size: The file's size in bytes.
        newest_ms: The publish time of the newest message or the time at which the file was written, whichever is
            earlier, because producers' clocks may be wrong. In milliseconds since 1970; None if both are unknown.
    """

    name: str
    size: int
    newest_ms: int | None


def outdated(files: Iterable[AgedFile], policy: HistoryPolicies, now_ms: int) -> list[str]:
    """Return the names of the files beyond the limit of time or of size, which retention removes. Pure.

    Args:
        files: The table's files; a file whose age is unknown is kept.
        policy: The limits.
        now_ms: The current time, in milliseconds since 1970.
    """
    known = [file for file in files if file.newest_ms is not None]
    minutes, megabytes = policy.retention_time_in_minutes, policy.retention_size_in_mb
    kept_bytes = 0
    names = []
    for file in sorted(known, key=lambda file: file.newest_ms or 0, reverse=True):
        is_beyond = 0 <= megabytes << 20 <= kept_bytes  # by the newer files alone: one file may exceed the limit
        kept_bytes += file.size
        is_old = minutes >= 0 and (file.newest_ms or 0) < now_ms - minutes * 60_000
        if is_old or is_beyond:
            names.append(file.name)
    return names


def apply_retention(table: HistoryTable, policy: HistoryPolicies) -> int:
    """Remove the files beyond the limits of retention from a history table (raises `HistoryTableError`).

    Returns:
        The number of removed files; 0 if other commits always came first, and then the next call tries again.
    """
    if policy.retention_time_in_minutes < 0 and policy.retention_size_in_mb < 0:
        return 0
    for _ in range(_ATTEMPTS):
        version, written_s = table.version(), table.listed_files()
        files = (_aged(file, written_s.get(file.name)) for file in version.files.values())
        names = outdated(files, policy, int(time.time() * 1000))
        if not names:
            return 0
        try:
            table.commit(version, {}, removed=names)
        except ConflictError as error:
            _LOGGER.info(
                "The retention of history table %s is tried again after another commit: %s", table.place, error
            )
        else:
            return len(names)
    return 0


def _aged(file: DataFile, written_s: float | None) -> AgedFile:
    newest = json.loads(file.stats or "{}").get("maxValues", {}).get("__publishTime")
    times_s = [] if written_s is None else [written_s]
    with suppress(ValueError, TypeError):  # none, or beyond the years of Python: the time of writing decides
        times_s.append(datetime.fromisoformat(newest).timestamp())
    return AgedFile(file.name, file.size, int(min(times_s) * 1000) if times_s else None)


def deletable(
    present: Mapping[str, float],
    named: Collection[str],
    removed_ms: Mapping[str, int],
    generations: Mapping[int, int],
    now_s: float,
) -> list[str]:
    """Return the names of the files to delete: removed files, and files of failed builds and merges. Pure.

    A file of a generation that is not committed yet is kept, because a suspended build may still commit it. So is a
    file of another program that was never removed from the table.

    Args:
        present: The times, in seconds since 1970, at which the files in the table's folder were written, by name.
        named: The files of the table's newest version, which was read after `present` was listed.
        removed_ms: The times at which files were removed from the table, by name, in milliseconds since 1970.
        generations: The generations of the partitions, by index (-1 for a topic without partitions), and under `MERGED`
            the number of merges.
        now_s: The current time, in seconds since 1970.
    """
    names = []
    for name, written_s in present.items():
        removed = removed_ms.get(name)
        if name in named:
            continue
        if removed is not None:
            is_over = now_s - removed / 1000 > KEEP_REMOVED_S
        else:
            is_over = _is_passed(name, generations) and now_s - written_s > ABANDONED_S
        if is_over:
            names.append(name)
    return names


def _is_passed(name: str, generations: Mapping[int, int]) -> bool:
    """Return True if the generation or merge number in a file's name is committed, so the file cannot be committed."""
    match = FILE_NAME.fullmatch(name)
    if match is None:
        return False
    kind, number, partition = match.groups()
    return int(number) <= generations.get(MERGED if kind == "m" else int(partition), 0)


def delete_files(table: HistoryTable, parts: Iterable[TopicPart]) -> int:
    """Delete the files of `deletable` from a history table (raises `HistoryTableError`).

    Args:
        table: The history table.
        parts: The topic, or its partitions.

    Returns:
        The number of deleted files.
    """
    present = table.listed_files()
    version = table.version()
    generations = {part.partition: version.progress(part.topic_id).generation for part in parts}
    generations[MERGED] = version.snapshot.keys.get(MERGES, 0)
    names = deletable(present, version.files, version.snapshot.removed_ms, generations, time.time())
    for name in names:
        table.delete_file(name)
    return len(names)
