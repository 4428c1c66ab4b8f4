"""Reading as `history()` reads, without a Spark session: the same plan, the table's files, and the topic's slices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pulsar_on_spark.datasource import history
from pulsar_on_spark.history_table.values import columns_of
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.managed_ledger.chain import chain
from tests.simulators.tiering.oracle import Row

_COLUMNS = ("__partition", "__ledgerId", "__entryId", "__batchIndex")


def topic_rows(root: RootHandle, view: View, part: TopicPart, start: Position, end: Position) -> list[Row]:
    """Return the messages of a range of a topic or partition, in order.

    Raises:
        DataLossError: some are lost, or trimmed.
        CopiesUnreachableError: some cannot be read now.
    """
    plan = chain.plan_range(view, part.name, part.topic_id, part.partition, start, end)
    if plan.losses:
        raise DataLossError(plan.losses[0].reason)
    reader = SliceReader(root.place, root.storage_paths(view), ("entry_id", "batch_index", "value"))
    found: list[Row] = []
    for slice_ in plan.slices:
        for read, batch in reader.read(slice_):
            where = read.segment
            for row in batch.to_pylist():
                id_ = (where.ledger_id, row["entry_id"] + where.entry_offset, row["batch_index"])
                found.append(Row(id_, **json.loads(row["value"])))
    return found


class TableReader:
    """Reader of a history table's files; each file is read once, because none ever changes."""

    def __init__(self) -> None:
        self._rows: dict[Path, list[tuple[int, Row]]] = {}

    def rows(self, source: history._Source) -> dict[int, list[Row]]:
        """Return the rows of a version by partition, each in the order of ids.

        Raises:
            FileNotFoundError: a file that the version names is missing.
        """
        found: dict[int, list[Row]] = {part.partition: [] for part in source.parts}
        if source.version is not None:
            assert isinstance(source.place, Path)
            for name in source.version.files:
                for partition, row in self._read(source.place / name, source.version.columns):
                    found[partition].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: row.id)
        return found

    def _read(self, file: Path, columns: Sequence[Mapping[str, Any]]) -> list[tuple[int, Row]]:
        file.stat()
        if file not in self._rows:
            self._rows[file] = list(_rows_of(file, columns))
        return self._rows[file]


def _rows_of(file: Path, columns: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Row]]:
    names = {field: [column["name"] for column in columns_of(field, columns)] for field in ("", "number", "note")}
    present = set(pq.read_schema(file).names)
    wanted = [name for name in (*_COLUMNS, *names[""], *names["number"], *names["note"]) if name in present]
    for row in pq.ParquetFile(file).read(wanted).to_pylist():
        values = {
            field: next((row[name] for name in own if row.get(name) is not None), None) for field, own in names.items()
        }
        raw: dict[str, Any] = {} if values[""] is None else json.loads(values[""])
        number = raw.get("number", values["number"])
        id_ = (row["__ledgerId"], row["__entryId"], row["__batchIndex"])
        partition = -1 if row["__partition"] is None else row["__partition"]
        yield partition, Row(id_, int(str(number)), raw.get("note", values["note"]))
