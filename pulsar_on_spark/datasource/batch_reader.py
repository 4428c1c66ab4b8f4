"""Batch reads: `spark.read.format("pulsarpy")`. A read is planned once, as a snapshot, and never moves a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.scan import Scan, ScanPartition, ScanPiece, spark_tail, split
from pulsar_on_spark.datasource.topics import Bounds, UserPositions, selected_parts
from pulsar_on_spark.datasource.typed import ReadSchema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.metadata.records import CompactionRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.compaction.reading import CompactedSlice, compacted_slices
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import log_start
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice


class PulsarBatchReader(DataSourceReader):
    """Reader of all messages between two positions of each selected topic, as of the planning of the read.

    Args:
        options: The options.
        schema: The columns.
        view: The metadata that determined the columns, by which the read is planned.

    Raises:
        InvalidArgumentError: an option is not possible in a batch read.
    """

    def __init__(self, options: ReadOptions, schema: ReadSchema, view: DurableView) -> None:
        _check(options)
        self._options = options
        self._view: DurableView | None = view
        self._scan = Scan(options.root, schema, options.fail_on_data_loss)

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without the metadata, which `partitions` then reads again."""
        return {**self.__dict__, "_view": None}

    @one_sentence
    def partitions(self) -> list[InputPartition]:
        """Plan the read, and return the partitions for its tasks (errors as `batch_bounds` and `plan_slices`)."""
        root = RootHandle.shared(self._options.root)
        durable = self._view or root.store.view(durable=True)
        with closing(spark_tail(root, self._options.fail_on_data_loss)) as tail:
            view = tail.read_view(selected_parts(durable, self._options.topics), durable, settle=True)
        bounds = batch_bounds(root, view, self._options)
        slices = plan_slices(view, bounds, self._options.fail_on_data_loss, compacted=self._options.read_compacted)
        pieces = [ScanPiece(slice_) for slice_ in slices]
        paths = root.storage_paths(view)
        return list(split(pieces, paths, self._options.min_partitions, self._options.max_records))

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. If there is nothing to read, Spark passes a plain `InputPartition`."""
        if not isinstance(partition, ScanPartition):
            return iter(())
        return self._scan.run(partition)


def batch_bounds(root: RootHandle, view: View, options: ReadOptions) -> list[Bounds]:
    """Return the start and end of a batch read in each selected topic or partition.

    Raises:
        TopicNotFoundError: a named topic does not exist.
        InvalidArgumentError: an option cannot be used with the topics, or a start is after its end.
        DataLossError: a given position is outside its topic, or the first message at a time may be lost.
    """
    parts = selected_parts(view, options.topics)
    positions = UserPositions(root, view, options)
    starts = positions.starts(parts, "earliest")
    ends = positions.ends(parts)
    for part in parts:
        named = options.starting is not None and options.ending is not None
        if named and starts[part.name] > ends[part.name]:
            raise InvalidArgumentError(
                f"The read of {part.name} starts at {starts[part.name]}, after its end at {ends[part.name]}: give "
                "startingOffsets at or before endingOffsets."
            )
    return [Bounds(part, starts[part.name], ends[part.name]) for part in parts]


def plan_slices(
    view: View, bounds: Sequence[Bounds], fail_on_data_loss: bool, *, compacted: bool = False
) -> list[SegmentSlice | CompactedSlice]:
    """Return the slices between the bounds, in the order of the topics and of their entries.

    Args:
        view: The metadata, with the entries in journals.
        bounds: The requested range of each topic or partition.
        fail_on_data_loss: True if a loss is an error.
        compacted: True to read a topic's compacted ledger, if it has one, up to the compaction horizon, and all entries
            behind the horizon.

    Raises:
        DataLossError: entries of a range are lost, and `fail_on_data_loss` is true.
    """
    slices: list[SegmentSlice | CompactedSlice] = []
    for bound in bounds:
        part, start = bound.part, bound.start
        record = view.get(CompactionRecord, part.topic_id) if compacted else None
        if record is not None:
            slices += compacted_slices(view, part, record, start, bound.end)
            start = max(start, log_start(view, part.topic_id, record))
        plan = chain.plan_range(view, part.name, part.topic_id, part.partition, start, bound.end)
        if fail_on_data_loss:
            plan.require_complete("to read on without them, set option failOnDataLoss to false")
        slices += plan.slices
    return slices


def _check(options: ReadOptions) -> None:
    if (options.starting or "").strip().lower() == "latest":
        raise InvalidArgumentError(
            "Option startingOffsets can't be latest in a batch read, which would find no message: give earliest or "
            "positions."
        )
    if options.read_compacted and (options.starting_time_ms is not None or options.ending_time_ms is not None):
        raise InvalidArgumentError(
            "Options startingTime and endingTime are not possible with readCompacted, which leaves out older messages "
            "of each key: filter by the column __publishTime instead."
        )
    for name, value in (
        ("maxMessagesPerTrigger", options.max_messages),
        ("maxBytesPerTrigger", options.max_bytes),
        ("minOffsetsPerTrigger", options.min_messages),
    ):
        if value is not None:
            raise InvalidArgumentError(f"Option {name} is possible only in a stream: leave it out of a batch read.")
