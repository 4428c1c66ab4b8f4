"""`history()`: one frame of the rows of a topic's history table and, behind its boundary, the topic's messages."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructField, StructType

from pulsar_on_spark.datasource.history_columns import FIELD_PREFIX, HistoryColumn, history_columns
from pulsar_on_spark.datasource.history_times import PUBLISH_TIME, Times, timestamp
from pulsar_on_spark.datasource.scan import spark_tail
from pulsar_on_spark.datasource.topics import first_published
from pulsar_on_spark.history_table.boundary import boundary_of
from pulsar_on_spark.history_table.places import find_table, is_begun, owner_of, require_held
from pulsar_on_spark.history_table.plan import ContradictionError
from pulsar_on_spark.history_table.recorded import end_of_messages, recorded_progress
from pulsar_on_spark.history_table.sql import quoted, spark_uri, viewable
from pulsar_on_spark.history_table.table import TableVersion
from pulsar_on_spark.metadata.records import HistoryTableRecord, LedgerRecord, SchemaRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError, MetadataError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.root_path import ROOT_VARIABLE
from pulsar_on_spark.storage.root_place import ObjectPlace, RootPlace, parse_place
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.catalog.tenants import require_namespace
from pulsar_on_spark.topic.managed_ledger.chain import chain

_LOGGER = logging.getLogger(__name__)
_READ_OPTIONS = {
    "__globPaths__": "false",
    # Settings of the session would shift times before 1582, or leave out the rows of lost files.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
"""Options with which Spark reads the Parquet files of the history table."""


@dataclass(frozen=True, slots=True)
class _Range:
    """The entries [start, end) of a topic or partition, read from the topic itself instead of the history table."""

    start: Position
    end: Position


@dataclass(slots=True)
class _Source:
    """The metadata, the history table and the ranges of a topic from which a frame is made.

    Attributes:
        root: The root.
        view: The metadata, with the acknowledged entries in journals.
        parts: The topic, or its partitions that are read.
        schema: The topic's latest schema; None without a schema.
        version: The version of the history table; None if no table is built.
        place: The folder or URL of the table; None if no table is built.
        below: By partition index (-1 for a topic without partitions), the position from which on rows of the table are
            left out; empty without `at_time`.
        ranges: By full name of a topic or partition, the range that is read from the topic itself.
    """

    root: RootHandle
    view: View
    parts: Sequence[TopicPart]
    schema: SchemaRecord | None
    version: TableVersion | None = None
    place: RootPlace | None = None
    below: dict[int, Position] = field(default_factory=dict)
    ranges: dict[str, _Range] = field(default_factory=dict)

    @property
    def table_columns(self) -> list[dict[str, object]]:
        """The history table's columns as Delta's JSON; empty without a table."""
        return [] if self.version is None else self.version.columns


def history(
    spark: SparkSession,
    topic: str,
    root: RootHandle | Path | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    starting_time: datetime | None = None,
    ending_time: datetime | None = None,
    at_time: datetime | None = None,
    include_metadata: bool = True,
) -> DataFrame:
    """Return a frame of all messages that a topic's history table or the topic itself has, each once.

    The frame shows the topic as of this call, with acknowledged messages in journals. Filters and columns are pushed
    down to the history table's Parquet files.

    Args:
        spark: The session, whose driver must be able to read the root's folder. For a root on an object store, the
            session needs Hadoop's file system of that store.
        topic: The topic, or one partition of it.
        root: The root, or its path or URL; None for the value of the environment variable PULSARPY_ROOT.
        columns: The names of the columns of the frame, in order; None for all.
        starting_time: The time before which published messages are left out; None for no limit.
        ending_time: The time from which on published messages are left out; None for no limit.
        at_time: The time as of which the topic is shown: each partition ends before its first entry that was published
            later. None for now.
        include_metadata: False to leave out the columns whose names begin with two underscores.

    Raises:
        TopicNotFoundError, NotARootError: the topic or the root does not exist.
        HistoryTableError: the history table cannot be read.
        InvalidArgumentError: a column is unknown, or an argument cannot be used.
        DataLossError, CopiesUnreachableError: acknowledged messages in journals are lost, or cannot be read now.
    """
    place, name = _root(root), TopicName.parse(topic)
    if isinstance(columns, str):
        raise InvalidArgumentError(f"Argument columns is {columns!r}: give a list of names, for example [{columns!r}].")
    times = Times.of(starting_time, ending_time, at_time)
    frame = partial(_frame, spark, place, name, columns, times, include_metadata)
    state = _replaceable(place, name)
    try:
        return frame()
    except Exception:
        if _replaceable(place, name) == state:
            raise
    return frame()


def _replaceable(place: RootPlace, name: TopicName) -> tuple[HistoryTableRecord | None, SchemaRecord | None]:
    """Return the records of a topic's history table and latest schema, each None if the topic has none.

    They may be replaced while a frame is planned.
    """
    view = RootHandle.shared(place).store.view()
    topic = catalog.require_topic(view, name)
    return view.get(HistoryTableRecord, owner_of(view, topic).topic_id), registry.latest(view, topic)


def _frame(
    spark: SparkSession,
    place: RootPlace,
    name: TopicName,
    columns: Sequence[str] | None,
    times: Times,
    include_metadata: bool,
) -> DataFrame:
    source = _source(place, name)
    known = {column.name: column for column in history_columns(source.schema, source.table_columns)}
    names = _selected(list(known), columns, include_metadata)
    if times.at is not None:
        _end_at(spark, source, times.at)
    needed = [known[each] for each in dict.fromkeys([*names, *times.needed])]
    frame = _union(_table_frame(spark, source, needed), _topic_frame(spark, source, needed))
    if frame is None:
        frame = spark.createDataFrame([], StructType([StructField(column.name, column.kind) for column in needed]))
    return times.between(frame).select(*map(quoted, names))


def views(
    spark: SparkSession, root: RootHandle | Path | str | None = None, namespace: str = "public/default"
) -> list[str]:
    """Create a temporary view for each topic of a namespace, with the frame that `history` returns.

    A view shows its topic as of this call. Call this function again to see later messages and topics.

    Args:
        spark: The session, whose driver must be able to read the root's folder.
        root: The root, or its path or URL; None for the value of the environment variable PULSARPY_ROOT.
        namespace: The namespace, as `tenant/namespace`.

    Returns:
        The names of the views, which are the topics' local names, without tenant and namespace. Topics whose names
        differ only in upper and lower case get no view, nor do topics that cannot be read; each is named in the log.

    Raises:
        NamespaceNotFoundError, NotARootError: the namespace or the root does not exist.
        MetadataError: the metadata cannot be read.
    """
    place = _root(root)
    handle = RootHandle.shared(place)
    view = handle.store.view()
    require_namespace(view, namespace)
    made = []
    for _, name in viewable(view, namespace):
        try:
            history(spark, name.full, handle).createOrReplaceTempView(quoted(name.local))
        except MetadataError:
            raise
        except Exception as error:  # also of Spark, which has no common base
            spark.catalog.dropTempView(name.local)  # a view of an earlier call would show old messages
            _LOGGER.warning("Topic %s gets no view: %s", name, " ".join(str(error).split()))
        else:
            made.append(name.local)
    return made


def _root(given: RootHandle | Path | str | None) -> RootPlace:
    if isinstance(given, RootHandle):
        return given.place
    place = given or os.environ.get(ROOT_VARIABLE)
    if not place:
        raise InvalidArgumentError(f"No root is given: give the argument root, or set {ROOT_VARIABLE}.")
    return parse_place(place)


def _source(place: RootPlace, name: TopicName) -> _Source:
    """Return the source of a frame. The metadata are read before the history table, as `history_table.boundary` asks.

    Raises:
        HistoryTableError: the table contradicts the metadata, or belongs to another copy of the root.
    """
    root = RootHandle.shared(place)
    durable = root.store.view(durable=True)
    topic = catalog.require_topic(durable, name)
    parts = catalog.parts(durable, topic)
    with closing(spark_tail(root, True)) as tail:
        view = tail.read_view(parts, durable, settle=True)
    source = _Source(root, view, parts, registry.latest(view, topic))
    table = find_table(root, view, topic)
    if table is not None and is_begun(view, parts, table):
        source.version, source.place = table.version(), table.place
        if any(_is_ahead(view, part, source.version) for part in parts):
            require_held(root, view, table)  # another copy of the root would have built other messages
    for part in parts:
        boundary = EARLIEST if source.version is None else _boundary(view, part, source.version)
        trimmed, end = chain.trimmed_before(view, part.topic_id), end_of_messages(view, part.topic_id)
        start = max(boundary, trimmed)
        if start < end:
            source.ranges[part.name] = _Range(_first(view, part) if start == EARLIEST else start, end)
    return source


def _first(view: View, part: TopicPart) -> Position:
    """Return the position of the first entry of a topic of which nothing was trimmed.

    With this position instead of `earliest`, a frame that is used after a trim fails, and does not skip messages.
    """
    return Position(LedgerId(view.all(LedgerRecord, part.topic_id)[0].ledger_id), EntryId(0))


def _is_ahead(view: View, part: TopicPart, version: TableVersion) -> bool:
    return version.progress(part.topic_id).generation > recorded_progress(view, part.topic_id).generation


def _boundary(view: View, part: TopicPart, version: TableVersion) -> Position:
    try:
        return boundary_of(recorded_progress(view, part.topic_id), version.progress(part.topic_id))
    except ContradictionError as error:
        raise HistoryTableError(
            f"The history table of {part.name} contradicts the root's metadata ({error}), so its folder was replaced: "
            "restore the folder from a copy."
        ) from error


def _table_frame(spark: SparkSession, source: _Source, columns: Sequence[HistoryColumn]) -> DataFrame | None:
    """Return the columns of `_table_rows`; None if the history table has no files."""
    rows = _table_rows(spark, source)
    return None if rows is None else rows.select(*(column.of_table() for column in columns))


def _table_rows(spark: SparkSession, source: _Source) -> DataFrame | None:
    """Return the rows of the history table, without the rows that `at_time` leaves out; None if it has no files.

    Raises:
        HistoryTableError: Spark has no file system for the object store.
    """
    if source.version is None or source.place is None or not source.version.files:
        return None
    columns = StructType.fromJson(json.loads(source.version.schema_text))
    schema = StructType([StructField(column.name, column.dataType) for column in columns])  # without metadata
    folder = spark_uri(source.place)
    files = [f"{folder}/{name}" for name in source.version.files]
    # Without a base path, folders of the root such as `env=prod` would become columns.
    reader = spark.read.schema(schema).options(basePath=folder, **_READ_OPTIONS)
    try:
        frame = reader.parquet(*files)
    except Exception as error:  # of Py4J without Hadoop's class, of PySpark without its options
        if isinstance(source.place, Path):
            raise
        raise HistoryTableError(
            f"Spark cannot read {folder}: give its session Hadoop's file system of this store and its options (for s3a "
            "the package hadoop-aws and spark.hadoop.fs.s3a.*), or read the topic with format('pulsarpy')."
        ) from error
    if len(source.parts) == 1 and source.parts[0].partition >= 0:  # one of the table's partitions
        frame = frame.where(functions.col("__partition") == source.parts[0].partition)
    for partition, below in source.below.items():
        frame = frame.where(_is_other(partition) | _is_before(below))
    return frame


def _is_other(partition: int) -> Column:
    return functions.lit(False) if partition < 0 else functions.col("__partition") != partition


def _is_before(position: Position) -> Column:
    ledger, entry = functions.col("__ledgerId"), functions.col("__entryId")
    return (ledger < position.ledger) | ((ledger == position.ledger) & (entry < position.entry))


def _topic_frame(spark: SparkSession, source: _Source, columns: Sequence[HistoryColumn]) -> DataFrame | None:
    """Return the messages behind the history table's boundary, read from the topic; None if there are none."""
    if not source.ranges:
        return None
    starts = {name: [range_.start.ledger, range_.start.entry] for name, range_ in source.ranges.items()}
    ends = {name: [range_.end.ledger, range_.end.entry - 1] for name, range_ in source.ranges.items()}
    names = [column.topic for column in columns if column.topic is not None]
    reader = spark.read.format("pulsarpy").option("topics", json.dumps(list(source.ranges)))
    reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    reader = reader.option("fieldPrefix", FIELD_PREFIX)
    if isinstance(source.root.place, ObjectPlace) and source.root.place.profile:
        reader = reader.option("storageProfile", source.root.place.profile)
    # Spark does not push columns down to Python sources. Any column shows the number of messages.
    frame = reader.option("columns", json.dumps(names or [PUBLISH_TIME])).load(str(source.root.place))
    # By positions, because fields that differ only in the case of letters have the same name for Spark.
    positions = [f"c{number}" for number in range(len(frame.columns))]
    found = {
        field.name: (functions.col(position), field.dataType)
        for field, position in zip(frame.schema, positions, strict=True)
    }
    return frame.toDF(*positions).select(*(column.of_topic(found) for column in columns))


def _union(table: DataFrame | None, topic: DataFrame | None) -> DataFrame | None:
    """Return the rows of both frames; None if both are None."""
    if table is None or topic is None:
        return topic if table is None else table
    return table.union(topic)


def _end_at(spark: SparkSession, source: _Source, time: int) -> None:
    """End each partition of `source` before its first entry published after `time`, in microseconds since 1970."""
    in_table = _first_in_table(spark, source, time)
    for part in source.parts:
        first = in_table.get(part.partition)
        if first is not None:
            source.below[part.partition] = min(first, source.below.get(part.partition, first))
            source.ranges.pop(part.name, None)
        range_ = source.ranges.get(part.name)
        if range_ is not None:
            _end_range(source, part, range_, time // 1000 + 1)


def _first_in_table(spark: SparkSession, source: _Source, time: int) -> Mapping[int, Position]:
    rows = _table_rows(spark, source)
    if rows is None:
        return {}
    late = rows.where(functions.col(PUBLISH_TIME) > timestamp(time))
    first = functions.min(functions.struct("__ledgerId", "__entryId")).alias("first")
    found = late.groupBy("__partition").agg(first).select("__partition", "first.*").collect()
    return {
        -1 if partition is None else partition: Position(LedgerId(ledger), EntryId(entry))
        for partition, ledger, entry in found
    }


def _end_range(source: _Source, part: TopicPart, range_: _Range, time_ms: int) -> None:
    """Shorten a range to end before its first entry published at `time_ms` or later; remove a range without entries."""
    end = first_published(source.root, source.view, part, range_.start, range_.end, time_ms)
    if end is None:
        return
    if end.entry == 0:  # the range ends with the last entry of the ledger before
        end = end_of_messages(source.view, part.topic_id, end)
    if max(range_.start, chain.trimmed_before(source.view, part.topic_id)) < end:
        source.ranges[part.name] = _Range(range_.start, end)
    else:
        del source.ranges[part.name]


def _selected(known: Sequence[str], wanted: Sequence[str] | None, include_metadata: bool) -> list[str]:
    if wanted is None:
        return [name for name in known if include_metadata or not name.startswith("__")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidArgumentError(f"The history has no column {unknown[0]!r}: give columns of {', '.join(known)}.")
    return list(wanted)
