"""Storage paths in a temporary directory, and segment batches to write to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.ledger.segments.segment_reader import read_batches
from pulsar_on_spark.ledger.segments.segment_writer import SegmentFileWriter, WrittenFile
from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.ids import FileId, PathId, WriteId
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.storage.local_path import LocalPath

WRITE_ID = WriteId("0123456789abcdef0123456789abcdef")


def make_batch(rows: int, seed: int = 0) -> pa.RecordBatch:
    """Rows that differ by seed, with values, keys, properties and nulls in every kind of column."""
    random = np.random.default_rng(seed)
    values = [random.bytes(int(random.integers(0, 200))).hex().encode() for _ in range(rows)]
    times = [1_700_000_000_000 + seed * 1000 + row for row in range(rows)]
    columns = {
        "entry_id": [row // 4 for row in range(rows)],
        "batch_index": [row % 4 for row in range(rows)],
        "publish_time": times,
        "event_time": [time if time % 2 else None for time in times],
        "producer_name": [f"spark-{WRITE_ID}"] * rows,
        "sequence_id": list(range(rows)),
        "key": [f"key-{row}".encode() if row % 3 else None for row in range(rows)],
        "key_b64": [False] * rows,
        "properties": [[("colour", "red"), ("seed", str(seed))] if row % 5 else None for row in range(rows)],
        "value": [value if row % 7 else None for row, value in enumerate(values)],
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in SEGMENT_SCHEMA
    ]
    return pa.record_batch(arrays, schema=SEGMENT_SCHEMA)


@dataclass
class Store:
    """Storage paths under one directory, and what tests do with files on them."""

    base: Path
    paths: list[LocalPath]
    reports: list[tuple[int, str]] = field(default_factory=list)

    @property
    def by_id(self) -> dict[PathId, LocalPath]:
        return {path.path_id: path for path in self.paths}

    def write(
        self,
        batches: Sequence[pa.RecordBatch],
        quorum: str = "3/3/2",
        files: FileOps = OS_FILES,
        file_id: str = f"{WRITE_ID}-0",
    ) -> WrittenFile:
        writer = SegmentFileWriter(FileId(file_id), self.paths, Quorum.parse(quorum), files)
        numbers = [writer.write_batch(batch) for batch in batches]
        assert numbers == list(range(len(batches)))
        return writer.close()

    def read(
        self,
        file: FileRecord,
        numbers: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        files: FileOps = OS_FILES,
    ) -> list[pa.RecordBatch]:
        numbers = range(file.batches) if numbers is None else numbers

        def on_bad_copy(path_id: PathId, reason: str) -> None:
            self.reports.append((path_id, reason))

        return list(read_batches(file, lambda: self.by_id, numbers, columns, on_bad_copy, files, at_stake="ledger 7"))

    def location(self, file: FileRecord, path_id: int) -> Path:
        return self.by_id[PathId(path_id)].segment_file(file.names[path_id])

    def left_over(self) -> list[str]:
        """The files under the paths' segment directories."""
        return sorted(str(f.relative_to(self.base)) for f in self.base.glob("*/segments/**/*") if f.is_file())


@pytest.fixture(scope="session")
def batch() -> Callable[..., pa.RecordBatch]:
    return make_batch


@pytest.fixture
def new_store(tmp_path: Path) -> Callable[..., Store]:
    def make(count: int = 3, base: Path = tmp_path / "store") -> Store:
        paths = [LocalPath(PathId(number), base / f"p{number}", "cluster-1") for number in range(count)]
        for path in paths:
            path.create()
        return Store(base, paths)

    return make


@pytest.fixture
def store(new_store: Callable[..., Store]) -> Store:
    return new_store()
