"""The data files of a metadata table: reading them, and remembering the small ones that the next fold reads again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_on_spark.metadata import folding

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


class DataFiles:
    """The files in one table's directory, whichever of them are active."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recent: dict[str, pa.Table] = {}

    def read(self, name: str) -> pa.Table:
        """A file's rows.

        Raises:
            FileNotFoundError: it was vacuumed.
            pyarrow.ArrowException, OSError: it is broken.
        """
        rows = self._recent.get(name)
        if rows is None:
            # No Python file in Arrow's threads: one that lets go of it while the process ends aborts that.
            with pa.OSFile(str(self._directory / name)) as file:
                rows = pq.ParquetFile(file, pre_buffer=False).read(use_threads=False)
            self.remember(name, rows)
        return rows

    def remember(self, name: str, rows: pa.Table) -> None:
        """These are the file's rows, as far as there is room for them."""
        if rows.num_rows <= _RECENT_ROWS and len(self._recent) < _RECENT_FILES:
            self._recent[name] = rows

    def keep(self, names: Collection[str]) -> None:
        """Forget the rows of all other files."""
        self._recent = {name: rows for name, rows in self._recent.items() if name in names}

    def measure(self, name: str) -> DataFile:
        """A file whose writer left no statistics (errors as `read`)."""
        seq = self.read(name).column("seq")
        bounds = pc.min_max(seq).as_py()
        return DataFile(name, len(seq), bounds["min"] or 0, bounds["max"] or 0)
