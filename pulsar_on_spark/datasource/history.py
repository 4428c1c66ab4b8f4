"""`history()`: one frame over a topic's history table and, behind its boundary, the topic itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from pulsar_on_spark.datasource.scan import spark_tail
from pulsar_on_spark.history_table.boundary import Boundary, boundary_of
from pulsar_on_spark.history_table.build import end_of_messages, recorded_progress
from pulsar_on_spark.history_table.columns import SYSTEM
from pulsar_on_spark.history_table.plan import ContradictionError, start_behind
from pulsar_on_spark.history_table.table import HistoryTable, TableVersion
from pulsar_on_spark.metadata.records import HistoryRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.root_path import ROOT_VARIABLE
from pulsar_on_spark.storage.root_place import RootPlace, parse_place
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.chain import chain

_SYSTEM = tuple(SYSTEM.names)


@dataclass(frozen=True, slots=True)
class _Source:
    """What a frame is made of.

    Attributes:
        root: The root.
        version: The version of the history table; None if nothing is built.
        folder: The table's folder.
        below: By partition, the position from which on rows of the table are left out.
        ranges: By full name of a topic or partition, its start and its last entry in the topic itself.
    """

    root: RootPlace
    version: TableVersion | None
    folder: Path | None
    below: dict[int, Position]
    ranges: dict[str, tuple[Position, Position]]


def history(
    spark: SparkSession,
    topic: str,
    root: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    starting_time: datetime | None = None,
    ending_time: datetime | None = None,
    include_metadata: bool = True,
) -> DataFrame:
    """Return all messages of a topic that its history or the topic itself still has, each once.

    The frame shows the topic as of this call: the history table, and behind it segments and acknowledged messages in
    journals. Filters and columns are pushed down to the table's Parquet files.

    Args:
        spark: The session; its driver must see the root's folder.
        topic: The topic, or one partition of it.
        root: The root; by default the environment variable PULSARPY_ROOT.
        columns: The columns of the frame; by default all.
        starting_time: Leave out messages that were published before this time.
        ending_time: Leave out messages that were published at this time or later.
        include_metadata: False to leave out the columns whose names begin with two underscores.

    Raises:
        TopicNotFoundError, NotARootError: there is no such topic or root.
        HistoryTableError: the table cannot be read.
        InvalidArgumentError: a column is unknown.
        DataLossError, CopiesUnreachableError: acknowledged messages in journals are lost, or cannot be read now.
    """
    source = _source(_root(root), TopicName.parse(topic))
    frames = [*_table_frame(spark, source), *_topic_frames(spark, source, topic)]
    frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    frame = _between(frame, starting_time, ending_time)
    return frame.select(*_selected(frame.columns, columns, include_metadata))


def _root(given: str | None) -> RootPlace:
    place = given or os.environ.get(ROOT_VARIABLE)
    if not place:
        raise InvalidArgumentError(f"No root is given: give the argument root, or set {ROOT_VARIABLE}.")
    return parse_place(place)


def _source(place: RootPlace, name: TopicName) -> _Source:
    """Read the metadata first, then the table: see `history_table.boundary`."""
    root = RootHandle.shared(place)
    durable = root.store.view(durable=True)
    parts = catalog.parts(durable, catalog.require_topic(durable, name))
    with closing(spark_tail(root, True)) as tail:
        view = tail.read_view(parts, durable, settle=True)
    records = [record for part in parts if (record := view.get(HistoryRecord, part.topic_id)) is not None]
    table = HistoryTable(root.place, records[0].table) if records else None
    version = None if table is None else table.version()
    below: dict[int, Position] = {}
    ranges: dict[str, tuple[Position, Position]] = {}
    for part in parts:
        boundary = _boundary(view, part, version)
        if boundary.below is not None:
            below[part.partition] = boundary.below
        start = start_behind(boundary.to, chain.trimmed_before(view, part.topic_id))
        end = end_of_messages(view, part.topic_id)
        if max(start, chain.trimmed_before(view, part.topic_id)) < end:
            ranges[part.name] = start, end
    return _Source(root.place, version, None if table is None else table.folder, below, ranges)


def _boundary(view: View, part: TopicPart, version: TableVersion | None) -> Boundary:
    main = recorded_progress(view, part.topic_id)
    if version is None:
        return Boundary(main.to, None)
    try:
        return boundary_of(main, version.progress(part.topic_id))
    except ContradictionError as error:
        raise HistoryTableError(
            f"The history table of {part.name} contradicts the root's metadata ({error}): it was replaced; restore it."
        ) from error


def _table_frame(spark: SparkSession, source: _Source) -> list[DataFrame]:
    if source.version is None or not source.version.files:
        return []
    schema = StructType.fromJson(json.loads(source.version.schema_text))
    files = [f"{source.folder}/{name}" for name in source.version.files]
    # Without a base path, folders of the root such as `env=prod` would become columns.
    reader = spark.read.schema(schema).option("basePath", str(source.folder)).option("__globPaths__", "false")
    frame = reader.parquet(*files)
    for partition, below in source.below.items():
        frame = frame.where(_is_other(partition) | _is_before(below))
    return [frame]


def _is_other(partition: int) -> Column:
    return functions.lit(False) if partition < 0 else functions.col("__partition") != partition


def _is_before(position: Position) -> Column:
    ledger, entry = functions.col("__ledgerId"), functions.col("__entryId")
    return (ledger < position.ledger) | ((ledger == position.ledger) & (entry < position.entry))


def _topic_frames(spark: SparkSession, source: _Source, topic: str) -> list[DataFrame]:
    if not source.ranges and source.version is not None and source.version.files:
        return []
    reader = spark.read.format("pulsarpy").option("topics", ",".join(source.ranges) or topic)
    reader = reader.option("includeMetadata", "true")
    if source.ranges:
        starts = {name: _point(start) for name, (start, _) in source.ranges.items()}
        ends = {name: [end.ledger, end.entry - 1] for name, (_, end) in source.ranges.items()}
        reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    frame = reader.load(str(source.root))
    if not source.ranges:
        frame = frame.where(functions.lit(False))  # for its columns
    values = [name for name in frame.columns if not name.startswith("__")]
    return [frame.select(*values, *_SYSTEM)]


def _point(position: Position) -> object:
    return "earliest" if position == EARLIEST else [position.ledger, position.entry]


def _between(frame: DataFrame, starting: datetime | None, ending: datetime | None) -> DataFrame:
    if starting is not None:
        frame = frame.where(functions.col("__publishTime") >= functions.lit(starting))
    return frame if ending is None else frame.where(functions.col("__publishTime") < functions.lit(ending))


def _selected(known: Sequence[str], wanted: Sequence[str] | None, include_metadata: bool) -> list[str]:
    if wanted is None:
        return [_quoted(name) for name in known if include_metadata or not name.startswith("__")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidArgumentError(f"The history has no column {unknown[0]!r}; its columns are {', '.join(known)}.")
    return [_quoted(name) for name in wanted]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
