"""Reading history: `spark.read.format("pulsarpy")`. A snapshot, planned once; it never moves a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.scan import Scan, ScanPartition, ScanPiece, split
from pulsar_on_spark.datasource.topics import Bounds, UserPositions, selected_parts
from pulsar_on_spark.datasource.typed import ReadSchema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, InvalidArgumentError
from pulsar_on_spark.topic import chain
from pulsar_on_spark.topic.root import Root


class PulsarBatchReader(DataSourceReader):
    """Reads every message between two positions of the selected topics, as they are when the read is planned."""

    def __init__(self, options: ReadOptions, schema: ReadSchema) -> None:
        _check(options)
        self._options = options
        self._scan = Scan(options.root, schema, options.fail_on_data_loss)

    @one_sentence
    def partitions(self) -> list[InputPartition]:
        """Plan: positions from the options, slices from the metadata, tasks from the sizes."""
        root = Root.shared(self._options.root)
        view = root.store.view(durable=True)
        bounds = batch_bounds(root, view, self._options)
        slices = plan_slices(view, bounds, self._options.fail_on_data_loss)
        pieces = [ScanPiece(slice_) for slice_ in slices]
        paths = root.storage_paths(view)
        return list(split(pieces, paths, self._options.min_partitions, self._options.max_records))

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's share (Spark passes a bare partition where there is nothing to read)."""
        if not isinstance(partition, ScanPartition):
            return iter(())
        return self._scan.run(partition)


def batch_bounds(root: Root, view: View, options: ReadOptions) -> list[Bounds]:
    """Where a batch read of each part starts and ends.

    Raises:
        TopicNotFoundError, InvalidArgumentError, DataLossError: the options don't fit the topics.
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


def plan_slices(view: View, bounds: Sequence[Bounds], fail_on_data_loss: bool) -> list[chain.SegmentSlice]:
    """The slices between the bounds.

    Raises:
        DataLossError: a part of a range is gone, and `fail_on_data_loss` is set.
    """
    found: list[chain.SegmentSlice] = []
    for bound in bounds:
        part = bound.part
        plan = chain.plan_range(view, part.name, part.topic_id, part.partition, bound.start, bound.end)
        if plan.losses and fail_on_data_loss:
            loss = plan.losses[0]
            raise DataLossError(
                f"Messages of {loss.topic} are lost: {loss.reason}; to read on without them, set option "
                "failOnDataLoss to false."
            )
        found += plan.slices
    return found


def _check(options: ReadOptions) -> None:
    if (options.starting or "").strip().lower() == "latest":
        raise InvalidArgumentError(
            "Option startingOffsets can't be latest in a batch read: there would be nothing to read."
        )
    for name, value in (
        ("maxMessagesPerTrigger", options.max_messages),
        ("maxBytesPerTrigger", options.max_bytes),
        ("minOffsetsPerTrigger", options.min_messages),
    ):
        if value is not None:
            raise InvalidArgumentError(f"Option {name} belongs to streams: leave it out of a batch read.")
