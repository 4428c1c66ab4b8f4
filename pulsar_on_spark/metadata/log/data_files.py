"""The data files of a metadata table: reading them, and remembering the small ones that the next fold reads again."""

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
"""Data files up to this size are remembered for the next fold, which reads all of the last 128 and more."""
_RECENT_FILES = 4 * folding.LAG


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active data file of the table: its name, its rows and the range of their `seq`."""

    name: str
    rows: int
    min_seq: int
    max_seq: int


def is_unreachable(error: Exception) -> bool:
    """True if a failed read says nothing about the file: the system refused, and no damage was found.

    Arrow raises OSErrors without a number for bytes that it cannot decode.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def read_content(path: Path) -> pa.Buffer:
    """All bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    with pa.OSFile(str(path)) as file:
        return file.read_buffer()


def read_unchanged(path: Path, known: Checksum | None) -> pa.Buffer:
    """All bytes of a file that has this checksum, or whose checksum is unknown.

    Raises:
        CorruptMetadataError: it is not what was written.
        OSError: it cannot be read.
    """
    content = read_content(path)
    if known not in (None, checksum_of(content)):
        raise damaged(path)
    return content


def rows_of(content: pa.Buffer, columns: list[str] | None = None) -> pa.Table:
    """The rows of a Parquet file's content, or some of its columns.

    Raises:
        pyarrow.ArrowException, OSError: it is broken.
    """
    # No Python file in Arrow's threads: one that lets go of it while the process ends aborts that.
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(columns=columns, use_threads=False)


def damaged(file: Path) -> CorruptMetadataError:
    """The error for a file that is damaged since it was written."""
    return CorruptMetadataError(
        f"The metadata file {file} is not what was written, so nothing is read from it and nothing was cut off: check "
        "the disk and restore the root's metadata from a backup."
    )


@contextmanager
def decoding(table: Path) -> Iterator[None]:
    """Take in rows that may be rotten: those of older versions have no checksum.

    Raises:
        CorruptMetadataError: they are.
    """
    try:
        yield
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptMetadataError(
            f"A row of the metadata table {table} cannot be read ({error}): check the disk and restore the root's "
            "metadata from a backup."
        ) from error


class DataFiles:
    """The files in one table's directory, whichever of them are active."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recent: dict[str, pa.Table] = {}
        self.checksums: dict[str, Checksum] = {}
        """The known checksums of files."""

    def read(self, name: str) -> pa.Table:
        """A file's rows.

        Raises:
            FileNotFoundError: it was vacuumed.
            CorruptMetadataError: it is not what was written.
            pyarrow.ArrowException, OSError: it is broken, or cannot be read now (`is_unreachable`).
        """
        rows = self._recent.get(name)
        if rows is None:
            rows = rows_of(read_unchanged(self._directory / name, self.checksums.get(name)))
            self.remember(name, rows)
        return rows

    def checksum(self, name: str) -> Checksum:
        """A file's checksum, taken from the file where it is not known (errors as `read`)."""
        return self.checksums.get(name) or checksum_of(read_content(self._directory / name))

    def remember(self, name: str, rows: pa.Table) -> None:
        """These are the file's rows, as far as there is room for them."""
        if rows.num_rows <= _RECENT_ROWS and len(self._recent) < _RECENT_FILES:
            self._recent[name] = rows

    def keep(self, names: Collection[str]) -> None:
        """Forget all other files."""
        self.checksums = {name: checksum for name, checksum in self.checksums.items() if name in names}
        self._recent = {name: rows for name, rows in self._recent.items() if name in names}

    def measure(self, name: str) -> DataFile:
        """A file whose writer left no statistics (errors as `read`)."""
        seq = self.read(name).column("seq")
        bounds = pc.min_max(seq).as_py()
        return DataFile(name, len(seq), bounds["min"] or 0, bounds["max"] or 0)
