"""The topics of a read, their partitions and declared schemas, and the positions where the read starts and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.datasource.options import ReadOptions, TopicSelection
from pulsar_on_spark.datasource.user_offsets import Point, UserOffsets, parse_ending_offsets, parse_starting_offsets
from pulsar_on_spark.metadata.records import SchemaRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.entries.message_columns import MAX_MILLISECONDS
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice


def selected(view: View, selection: TopicSelection) -> list[TopicRecord]:
    """Return the topics that a read selects; empty for a pattern that matches no topic yet.

    Raises:
        TopicNotFoundError: a named topic does not exist.
        InvalidArgumentError: a name or the pattern is illegal.
    """
    if selection.pattern is not None:
        return catalog.matching_topics(view, selection.pattern)
    return [catalog.require_topic(view, name) for name in catalog.names(selection.names)]


def selected_parts(view: View, selection: TopicSelection) -> list[TopicPart]:
    """Return the partitions and unpartitioned topics of the selection, in order, each once (errors as `selected`)."""
    parts = (part for topic in selected(view, selection) for part in catalog.parts(view, topic))
    return list(dict.fromkeys(parts))


def common_schema(view: View, options: ReadOptions) -> SchemaRecord | None:
    """Return the declared schema that the selected topics share; None if `value` is to be read as bytes.

    The result is None without a topic, for topics without a schema or of the type NONE, and for topics with different
    schemas if option `allowDifferentTopicSchemas` is true.

    Raises:
        InvalidArgumentError: the topics have different schemas, and `allowDifferentTopicSchemas` is false.
    """
    latest = [registry.latest(view, topic) for topic in selected(view, options.topics)]
    declared = [None if schema is None or schema.type == "NONE" else schema for schema in latest]
    texts = {(schema.type, schema.data) if schema else None for schema in declared}
    if len(texts) <= 1:
        return declared[0] if declared else None
    if options.allow_different_schemas:
        return None
    raise InvalidArgumentError(
        "The selected topics have different schemas: read them one by one, or set option allowDifferentTopicSchemas to "
        "true to get value as bytes."
    )


def schema_versions(view: View, options: ReadOptions) -> list[SchemaRecord]:
    """Return every schema version of the selected topics, without deleted versions."""
    owners = {TopicName.parse(topic.partition_of or topic.name) for topic in selected(view, options.topics)}
    return [version for owner in owners for version in registry.readable(view, owner)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The start (inclusive) and the end (exclusive) of a batch read in a topic or partition."""

    part: TopicPart
    start: Position
    end: Position


class UserPositions:
    """Converter of the options `startingOffsets`, `startingTime`, `endingOffsets` and `endingTime` to positions."""

    def __init__(self, root: RootHandle, view: View, options: ReadOptions) -> None:
        self._root = root
        self._view = view
        self._options = options

    def starts(self, parts: Sequence[TopicPart], default: Point) -> dict[str, Position]:
        """Return the start of the read of each topic or partition, by full name; `default` if the options give none.

        Raises:
            InvalidArgumentError: an option names a topic that is not read; or a topic has no message published at
                startingTime or later, and `startingOffsetsByTimestampStrategy` is `error`.
            DataLossError: a given position is outside its topic, or the first message at a time may be lost.
        """
        options = self._options
        if options.starting_time_ms is not None:
            positions = {}
            for part in parts:
                position = self._at_time(part, options.starting_time_ms)
                if position is None and options.time_strategy == "error":
                    raise InvalidArgumentError(
                        f"Option startingTime: no message of {part.name} was published at or after "
                        f"{options.starting_time_ms} ms; set startingOffsetsByTimestampStrategy to latest to start at "
                        "the end."
                    )
                positions[part.name] = chain.read_limit(self._view, part.topic_id) if position is None else position
            return positions
        offsets = UserOffsets(default, {})
        if options.starting is not None:
            offsets = parse_starting_offsets(options.starting, default)
        return self._resolve(parts, offsets, "startingOffsets")

    def ends(self, parts: Sequence[TopicPart]) -> dict[str, Position]:
        """Return the end (exclusive) of a batch read in each topic or partition, by full name.

        The read ends at the topic's end without ending options, and if no message was published at endingTime or later.

        Raises:
            InvalidArgumentError: an option names a topic that is not read.
            DataLossError: a given position is outside its topic, or the first message at a time may be lost.
        """
        if self._options.ending_time_ms is not None:
            times = {part.name: self._at_time(part, self._options.ending_time_ms) for part in parts}
            return {part.name: times[part.name] or chain.read_limit(self._view, part.topic_id) for part in parts}
        ending = self._options.ending
        offsets = UserOffsets("latest", {}) if ending is None else parse_ending_offsets(ending)
        return self._resolve(parts, offsets, "endingOffsets")

    def _resolve(self, parts: Sequence[TopicPart], given: UserOffsets, option: str) -> dict[str, Position]:
        unmatched = given.unmatched(TopicName.parse(part.name) for part in parts)
        if unmatched:
            raise InvalidArgumentError(
                f"Option {option} names {unmatched[0]}, which this query does not read: take it out of the option."
            )
        return {part.name: self._position(part, given.of(TopicName.parse(part.name)), option) for part in parts}

    def _position(self, part: TopicPart, point: Point, option: str) -> Position:
        if point == "earliest":
            return EARLIEST
        if point == "latest":
            return chain.read_limit(self._view, part.topic_id)
        try:
            chain.require_ledger(self._view, part.name, part.topic_id, point)
        except DataLossError as error:
            raise DataLossError(f"Option {option}: {error}") from error
        return point

    def _at_time(self, part: TopicPart, time_ms: int) -> Position | None:
        """Return the first entry with a message published at `time_ms` or later; None if there is none."""
        end = chain.read_limit(self._view, part.topic_id)
        strict = self._options.fail_on_data_loss
        return first_published(self._root, self._view, part, EARLIEST, end, time_ms, fail_on_data_loss=strict)


def first_published(
    root: RootHandle,
    view: View,
    part: TopicPart,
    start: Position,
    end: Position,
    time_ms: int,
    *,
    fail_on_data_loss: bool = True,
) -> Position | None:
    """Return the first entry of [start, end) with a message published at a time or later; None if there is none.

    A message whose publish time is null in Spark, because it does not fit into microseconds, is never the result.

    Args:
        root: The root.
        view: The metadata, with the entries in journals.
        part: The topic or partition.
        start: The first position of the range.
        end: The end of the range.
        time_ms: The time, in milliseconds since 1970.
        fail_on_data_loss: False to ignore that the first such entry may be among lost entries.

    Raises:
        DataLossError: entries right before the found entry are lost; without a found entry, those before the end. Only
            if `fail_on_data_loss` is true.
    """
    reader = SliceReader(root.place, root.storage_paths(view), ("entry_id", "publish_time"), fail_on_data_loss)
    found: Position | None = None
    loss: chain.Loss | None = None
    for piece in chain.walk_range(view, part.name, part.topic_id, part.partition, start, end):
        if isinstance(piece, chain.Loss):
            loss = piece
            continue
        found = _first_in(reader, piece, time_ms)
        if found != piece.start_position:  # earlier messages of the piece come after the loss
            loss = None
        if found is not None:
            break
    if loss is not None and fail_on_data_loss:
        raise DataLossError(
            f"The first message of {part.name} published at or after {time_ms} ms may be lost: {loss.reason}; to read "
            "on from the next one, set option failOnDataLoss to false, or give another time."
        )
    return found


def _first_in(reader: SliceReader, slice_: SegmentSlice, time_ms: int) -> Position | None:
    """Return the first entry of a slice with a message published at `time_ms` or later; None if there is none."""
    if slice_.segment.publish_max_ms < time_ms:
        return None
    if slice_.segment.publish_min_ms >= time_ms and slice_.segment.publish_max_ms <= MAX_MILLISECONDS:
        return slice_.start_position
    for slice_read, batch in reader.read(slice_):
        times = batch.column("publish_time").cast(pa.int64())
        late = pc.and_(pc.greater_equal(times, time_ms), pc.less_equal(times, MAX_MILLISECONDS))
        entries = batch.column("entry_id").filter(late)
        if len(entries):
            entry = pc.min(entries).as_py() + slice_read.segment.entry_offset
            return Position(LedgerId(slice_read.segment.ledger_id), EntryId(entry))
    return None
