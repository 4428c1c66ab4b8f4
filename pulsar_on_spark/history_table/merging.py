"""Merging of a history table's small files, which frequent builds of few messages write.

Adjacent small files of one partition become one file with the same rows. The file of a merge has the merge's number in
its name, and the merge's commit records this number. So a file that no version names, and whose number is recorded
already, belongs to a failed merge, and may be deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_on_spark.history_table.plan import grouped
from pulsar_on_spark.history_table.table import FILE_NAME, MERGES, HistoryTable
from pulsar_on_spark.metadata.log.chain import ConflictError
from pulsar_on_spark.metadata.log.creation import arrow_schema
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.model.errors import HistoryTableError

SMALL_BYTES: Final = 8 << 20
"""Size in bytes below which a file is merged with others."""
MERGED_BYTES: Final = 16 << 20
"""Total size in bytes at which a group of files to merge is complete."""
PART_BYTES: Final = 64 << 20
"""Uncompressed bytes of rows, or up to a row group more, that a merge holds in memory."""
WORTH_FILES: Final = 16
"""Number of small files of one partition at which a merge is worth its cost."""
_REMEDY: Final = "restore the table from a copy, or build the history again"
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A data file with the properties that decide merges.

    Attributes:
        file: The file.
        partition: The partition of its rows; -1 for a topic without partitions.
        first: Ledger id and entry id of its first message.
    """

    file: DataFile
    partition: int
    first: tuple[int, int]


def merges(files: Iterable[DataFile]) -> list[list[PlacedFile]]:
    """Return the groups of files to merge, each in order. Pure.

    Partitions with fewer than `WORTH_FILES` small files are left out. So are files of other programs, because Spark may
    have written their times by its legacy calendar.
    """
    by_partition: dict[int, list[PlacedFile]] = {}
    for file in files:
        placed = _placed(file)
        if placed is not None and file.size < SMALL_BYTES:
            by_partition.setdefault(placed.partition, []).append(placed)
    chosen: list[list[PlacedFile]] = []
    for small in by_partition.values():
        if len(small) >= WORTH_FILES:
            groups = grouped(sorted(small, key=lambda each: each.first), lambda each: each.file.size, MERGED_BYTES)
            chosen += [group for group in groups if len(group) > 1]
    return chosen


def merge_small_files(table: HistoryTable) -> int:
    """Merge a history table's small files, with one commit for each group of files.

    Returns:
        The number of files that were replaced. It is lower if another commit came first: a later call merges the rest.

    Raises:
        HistoryTableError: the table cannot be read or written, or a file is damaged.
    """
    done = 0
    for group in merges(table.version().files.values()):
        version = table.version()
        files = [each.file for each in group]
        if not {file.name for file in files} <= version.files.keys():
            continue
        number = version.snapshot.keys.get(MERGES, 0) + 1
        schema = arrow_schema(version.schema_text)
        parts = (part for file in files for part in _read(table, file, schema))
        joined = (pa.concat_tables(each) for each in grouped(parts, lambda part: part.nbytes, PART_BYTES))
        merged = table.write_file(f"m{number}", group[0].partition, schema, joined)
        try:
            removed = [file.name for file in files]
            table.commit(version, {MERGES: number}, [merged], removed, is_rearrangement=True)
        except ConflictError as error:
            _LOGGER.info("The next pass merges the files of %s, because of another commit: %s", table.place, error)
            break
        done += len(group)
    return done


def _placed(file: DataFile) -> PlacedFile | None:
    """Return a file with its partition and first entry.

    Returns:
        None for a file of another program, or a file whose statistics lack partition or entry.
    """
    if FILE_NAME.fullmatch(file.name) is None:
        return None
    stats = json.loads(file.stats or "{}")
    smallest, largest, nulls = (stats.get(name, {}) for name in ("minValues", "maxValues", "nullCount"))
    partition = smallest.get("__partition", -1)
    is_one = largest.get("__partition", -1) == partition and nulls.get("__partition") in (0, file.rows)
    if not is_one or "__ledgerId" not in smallest or "__entryId" not in smallest:
        return None
    return PlacedFile(file, partition, (smallest["__ledgerId"], smallest["__entryId"]))


def _read(table: HistoryTable, file: DataFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the row groups of a file with the table's columns, and verify the checksums of its pages.

    Raises:
        HistoryTableError: the file is missing or damaged.
    """
    content = table.read_file(file.name)
    if content is None:
        raise HistoryTableError(f"The file {file.name} of the history table {table.place} is missing: {_REMEDY}.")
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as found:
            if found.metadata.num_rows != file.rows:
                raise HistoryTableError(
                    f"The file {file.name} of the history table {table.place} has {found.metadata.num_rows} rows "
                    f"instead of {file.rows}: {_REMEDY}."
                )
            for number in range(found.num_row_groups):
                yield _as(found.read_row_group(number, use_threads=False), schema)
    except (OSError, pa.ArrowException) as error:
        raise HistoryTableError(
            f"The file {file.name} of the history table {table.place} cannot be read ({error}): {_REMEDY}."
        ) from error


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of `schema`; a column that the rows lack is null."""
    names = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
