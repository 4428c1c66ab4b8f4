"""The data files of a table, which are Parquet, and a cache of small files, which the next fold reads again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.entry import DataFile
from pulsar_on_spark.metadata.log.log_store import LogStore
from pulsar_on_spark.metadata.log.reading_ahead import ReadingAhead
from pulsar_on_spark.model.errors import CorruptMetadataError
from pulsar_on_spark.storage.objects.contract import Fetched

_RECENT_BYTES: Final = 64 << 10
"""Maximum bytes in memory of the rows of one cached file."""
_RECENT_FILES: Final = 4 * folding.LAG
_FEW_ROWS: Final = 16
"""Number of rows below which a dictionary of a column's values takes more time and space than the values."""
_NAME: Final = re.compile(r"part-(\d{20})-[0-9a-f]+\.parquet")


class MissingFileError(Exception):
    """A data file does not exist: it was deleted after a fold had replaced it, or it is lost."""


def encode_file(rows: pa.Table, read_version: int, token: str) -> tuple[DataFile, bytes]:
    """Encode the rows of one commit; return the file's description and its content.

    Args:
        rows: At least one row.
        read_version: The version on which the commit was decided. It is part of the file's name, because a file that no
            entry names may be deleted once the entry after this version was cleaned up.
        token: The commit's token.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, write_statistics=["seq"], use_dictionary=rows.num_rows >= _FEW_ROWS)
    content = sink.getvalue().to_pybytes()
    seq = rows.column("seq").to_numpy()
    name = f"part-{read_version:020d}-{token}.parquet"
    return DataFile(name, len(content), rows.num_rows, int(seq.min()), int(seq.max()), crc32c(content)), content


def read_version_of(name: str) -> int:
    """Return the version on which a file's commit was decided; -1 for a file that format 1 wrote."""
    match = _NAME.fullmatch(name)
    return -1 if match is None else int(match[1])


@contextmanager
def decoding(place: str) -> Iterator[None]:
    """Translate errors of decoding rows. Such rows are damaged, which no checksum shows for files of format 1.

    Args:
        place: The table's path, for the error.

    Raises:
        CorruptMetadataError: a row cannot be decoded.
    """
    try:
        yield
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptMetadataError(
            f"A row of the metadata table {place} cannot be read ({error}): check the disk and restore the root's "
            "metadata from a backup."
        ) from error


class DataFiles:
    """The data files of one table."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._recent: dict[str, pa.Table] = {}

    def read(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Read the rows of each file, in this order.

        Raises:
            MissingFileError: a file does not exist.
            CorruptMetadataError: a file's content differs from the written one.
        """
        files = list(files)
        ahead = ReadingAhead(self._store, [file.name for file in files if file.name not in self._recent])
        for file in files:
            rows = self._recent.get(file.name)
            if rows is None:
                rows = self._decoded(file, ahead.fetch(file.name))
                self.remember(file.name, rows)
            yield rows

    def remember(self, name: str, rows: pa.Table) -> None:
        """Add a file's rows to the cache if they are small and the cache has room."""
        if rows.get_total_buffer_size() <= _RECENT_BYTES and len(self._recent) < _RECENT_FILES:
            self._recent[name] = rows

    def keep(self, names: Collection[str]) -> None:
        """Drop all files from the cache except those with these names."""
        self._recent = {name: rows for name, rows in self._recent.items() if name in names}

    def _decoded(self, file: DataFile, fetched: Fetched | None) -> pa.Table:
        if fetched is None:
            raise MissingFileError(file.name)
        content = fetched.content
        if len(content) != file.size or file.crc not in (None, crc32c(content)):
            raise CorruptMetadataError(
                f"The metadata file {file.name} in {self._store.place} is damaged, because it differs from its length "
                "or checksum in the log: check the disk and restore the root's metadata from a backup."
            )
        with decoding(self._store.place):
            # Arrow's threads must not hold a Python file: releasing it while the process ends would abort the process.
            return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
