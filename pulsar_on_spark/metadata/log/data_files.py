"""Reader of a metadata table's data files, with a cache of the small ones that the next fold reads again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_on_spark.metadata.log import folding
from pulsar_on_spark.metadata.log.checksums import Checksum, checksum_of
from pulsar_on_spark.model.errors import CorruptMetadataError

_RECENT_ROWS = 512
"""Largest data file in the cache, in rows. The next fold reads at least the last 128 files."""
_RECENT_FILES = 4 * folding.LAG


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of the table: its name, its number of rows and the range of the rows' `seq`."""

    name: str
    rows: int
    min_seq: int
    max_seq: int


def is_unreachable(error: Exception) -> bool:
    """True if a read failed without evidence of damage, as the operating system refused it.

    Arrow raises OSErrors without an errno for bytes that it cannot decode.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def read_content(path: Path) -> pa.Buffer:
    """Read all bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    with pa.OSFile(str(path)) as file:
        return file.read_buffer()


def read_unchanged(path: Path, known: Checksum | None) -> pa.Buffer:
    """Read all bytes of a file and compare them with its checksum, if that is known.

    Raises:
        CorruptMetadataError: the file was changed after it was written.
        OSError: it cannot be read.
    """
    content = read_content(path)
    if known not in (None, checksum_of(content)):
        raise damaged(path)
    return content


def rows_of(content: pa.Buffer, columns: list[str] | None = None) -> pa.Table:
    """Decode the rows of a Parquet file's content, or some of its columns.

    Raises:
        pyarrow.ArrowException, OSError: the content is broken.
    """
    # Arrow's threads must not hold a Python file: releasing it while the process ends would abort the process.
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(columns=columns, use_threads=False)


def damaged(file: Path) -> CorruptMetadataError:
    """Make the error for a file that was changed after it was written."""
    return CorruptMetadataError(
        f"The metadata file {file} is not what was written, so nothing is read from it and nothing was cut off: check "
        "the disk and restore the root's metadata from a backup."
    )


@contextmanager
def decoding(table: Path) -> Iterator[None]:
    """Translate errors of decoding rows, because rows that older versions wrote have no checksum.

    Raises:
        CorruptMetadataError: the rows are damaged.
    """
    try:
        yield
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptMetadataError(
            f"A row of the metadata table {table} cannot be read ({error}): check the disk and restore the root's "
            "metadata from a backup."
        ) from error


class DataFiles:
    """The data files in one table's directory, active or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recent: dict[str, pa.Table] = {}
        self.checksums: dict[str, Checksum] = {}
        """Known checksums of files, by name."""

    def read(self, name: str) -> pa.Table:
        """Read a file's rows.

        Raises:
            FileNotFoundError: the file was vacuumed.
            CorruptMetadataError: the file was changed after it was written.
            pyarrow.ArrowException, OSError: the file is broken, or cannot be read now (`is_unreachable`).
        """
        rows = self._recent.get(name)
        if rows is None:
            rows = rows_of(read_unchanged(self._directory / name, self.checksums.get(name)))
            self.remember(name, rows)
        return rows

    def checksum(self, name: str) -> Checksum:
        """A file's checksum, computed if it is not known (errors as `read`)."""
        return self.checksums.get(name) or checksum_of(read_content(self._directory / name))

    def remember(self, name: str, rows: pa.Table) -> None:
        """Add a file's rows to the cache, if there is room."""
        if rows.num_rows <= _RECENT_ROWS and len(self._recent) < _RECENT_FILES:
            self._recent[name] = rows

    def keep(self, names: Collection[str]) -> None:
        """Drop all other files from the cache and the checksums."""
        self.checksums = {name: checksum for name, checksum in self.checksums.items() if name in names}
        self._recent = {name: rows for name, rows in self._recent.items() if name in names}

    def measure(self, name: str) -> DataFile:
        """Compute the statistics of a file whose log entry lacks them (errors as `read`)."""
        seq = self.read(name).column("seq")
        bounds = pc.min_max(seq).as_py()
        return DataFile(name, len(seq), bounds["min"] or 0, bounds["max"] or 0)
