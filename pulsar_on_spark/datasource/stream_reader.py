"""Streaming reads: `spark.readStream.format("pulsarpy")`, with or without a subscription.

Spark calls the offset methods on one instance in a runner process, and `read` on copies of another instance in the
tasks. A batch is planned from its end offset alone, because Spark does not keep the start of batch 0.
`latestOffset(start)` also moves the cursors to `start`, because Spark has committed the batches up to it; with
AvailableNow, Spark calls it once more after the last batch. The metadata are read once for each micro-batch, in
`latestOffset`, and the later steps of the batch use the same view.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pulsar_on_spark.datasource import stream_plan
from pulsar_on_spark.datasource.admission import admit, count_passed_over
from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.report_log import ReportLog
from pulsar_on_spark.datasource.scan import Scan, ScanPartition, ScanPiece, spark_tail, split
from pulsar_on_spark.datasource.stream_identity import StreamIdentity
from pulsar_on_spark.datasource.stream_subscription import StreamSubscription, first_topics
from pulsar_on_spark.datasource.topics import UserPositions, selected_parts
from pulsar_on_spark.datasource.typed import ReadSchema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.datasource.worker_process import end_by_exception, finish_undisturbed
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import DataLossError, InvalidArgumentError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.slot_filter import SlotFilter
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.cursor.left_out import LeftOut
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import SlotRange, StreamOffset, TopicOffset

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.1
"""Seconds between two reads of the metadata by an idle stream, which Spark asks for new messages every 10 ms."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Planned:
    """The last batch that `latestOffset` planned.

    Attributes:
        offset: The end offset of the batch.
        view: The view of the metadata by which the batch was planned; None after the batch's tasks are created.
    """

    offset: StreamOffset
    view: View | None


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one streaming query, which plans offsets and reads batches.

    Raises:
        InvalidArgumentError: an option is not possible in a stream.
    """

    def __init__(self, options: ReadOptions, schema: ReadSchema) -> None:
        _check(options)
        self._shares_slots = options.subscription_type in ("Shared", "Key_Shared")
        slot_filter = SlotFilter(by_key=options.subscription_type == "Key_Shared") if self._shares_slots else None
        self._options = options
        self._scan = Scan(options.root, schema, options.fail_on_data_loss, slot_filter)
        self._identity: StreamIdentity | None = None
        self._subscription: StreamSubscription | None = None
        self._tail: Tail | None = None
        self._initial: Json | None = None
        self._committed: StreamOffset | None = None
        self._planned: _Planned | None = None
        self._progress: Json | None = None
        self._targets: dict[str, Position] | None = None
        self._finishing = False
        self._looked_at_s = float("-inf")
        self._delivered_at_s = time.monotonic()
        self._reports: ReportLog | None = None
        self._passed_over: Mapping[str, int] = {}
        self._told: set[str] = set()

    # -- Spark's interface -----------------------------------------------------------------------------------------

    @one_sentence
    def initialOffset(self) -> Json:
        """Return the offset at which a new query starts, without creating a subscription.

        Spark calls this again before each poll until the first batch is planned, so the result stays the same while the
        topics grow. Spark also calls this for a replay of a checkpoint's batch 0, and then ignores the result.
        """
        if self._initial is None:
            root = RootHandle.shared(self._options.root)
            durable = root.store.view(durable=True)
            parts = selected_parts(durable, self._options.topics)
            view = self._looking(root).read_view(parts, durable)
            identity = StreamIdentity.new(self._options)
            if identity.subscription is None:
                starts = UserPositions(root, view, self._options).starts(parts, "latest")
                topics = {part.name: stream_plan.unread(part, starts[part.name]) for part in parts}
            else:
                topics = first_topics(root, view, parts, self._options, identity.subscription)
            self._initial = StreamOffset(identity.consumer, topics, identity.subscription).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch from the options. For Trigger.Once, Spark ignores this limit."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_messages is not None:
            return ReadMinRows(self._options.min_messages)
        return ReadAllAvailable()

    @one_sentence
    def prepareForTriggerAvailableNow(self) -> None:
        """Store the current ends of the topics, at which this AvailableNow query ends."""
        root = RootHandle.shared(self._options.root)
        durable = root.store.view(durable=True)
        parts = stream_plan.existing_parts(durable, self._options.topics)
        view = self._looking(root).read_view(parts, durable, settle=True)
        self._targets = {part.name: chain.read_limit(view, part.topic_id) for part in parts}

    @one_sentence
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end offset of the next batch, or `start` unchanged if there is no message to read.

        Spark has committed the batches up to `start`, so the cursors move to it.

        Raises:
            DataLossError: messages after `start` are lost, or the options no longer select a topic of the offset;
                only if `failOnDataLoss` is true.
            ConsumerBusyError: another live consumer owns the subscription.
            ConsumerFencedError: the cursor was reset while this query was running.
            SubscriptionNotFoundError: the subscription was deleted while this query was running.
        """
        committed = self._adopt(start)
        self._pace(committed)
        self._planned = _Planned(committed, None)
        root = RootHandle.shared(self._options.root)
        durable = root.store.view(durable=True)
        parts = stream_plan.existing_parts(durable, self._options.topics)
        self._lose_all(stream_plan.vanished(durable, committed, parts))
        view: View = durable
        if self._subscription is not None:
            self._subscription.acknowledge(committed)
            view, reading = self._subscription.decide_turn(
                view, parts, committed, wait=self._targets is not None, finishing=self._finishing
            )
        else:
            reading = stream_plan.whole_topics(committed, parts)
        view = self._looking(root).read_view(parts, view)
        self._lose_all(stream_plan.cut_off(view, parts, reading))
        end = self._next(view, committed, parts, reading, limit)
        if end is None and self._targets is not None and self._shares_slots and not self._finishing:
            # A slot that was released for another query may still be free, because the other query may have ended.
            self._finishing = True
            return self.latestOffset(start, limit)
        self._planned = _Planned(committed if end is None else end, view)
        if end is None:
            if self._subscription is not None:
                self._subscription.acknowledge(committed, now=True)
            self._looked_at_s = time.monotonic()
            return start
        self._delivered_at_s = time.monotonic()
        return end.to_json()

    @one_sentence
    def reportLatestOffset(self) -> Json | None:
        """Return the topics' ends, and the backlog after the running batch, for `query.lastProgress`.

        The result is None before the first batch is planned.
        """
        planned = self._planned
        if planned is not None and planned.view is not None:
            left_out = self._left_out(planned.offset, is_replay=False)
            self._progress = stream_plan.progress(planned.view, planned.offset, left_out)
        return self._progress

    @one_sentence
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of a batch. They depend only on its end offset, so each replay has the same messages.

        Raises:
            DataLossError: messages of the batch are lost, and `failOnDataLoss` is true.
        """
        offset = self._adopt(end)
        root = RootHandle.shared(self._options.root)
        self._reports = self._reports or ReportLog(root.place)
        planned = self._planned
        planned_view = planned.view if planned is not None and planned.offset == offset else None
        view: View = planned_view or root.store.view(durable=True)
        parts = {name: stream_plan.part_of(view, name, topic.topic_id) for name, topic in sorted(offset.topics.items())}
        existing = [part for part in parts.values() if part is not None]
        if planned is None and self._subscription is not None:
            # An earlier process planned this batch, so check that no other consumer owns the subscription now.
            self._subscription.admit_batch(existing, offset)
        if planned_view is None:
            reach = {part.topic_id: stream_plan.furthest(offset.topics[part.name]) for part in existing}
            view = self._looking(root).read_view(existing, view, reach=reach)
        left_out = self._left_out(offset, is_replay=planned_view is None)
        self._planned = _Planned(offset, None)
        pieces: list[ScanPiece] = []
        for name, part in parts.items():
            ranges: Sequence[SlotRange] = offset.topics[name].ranges
            if part is None and any(range_.start < range_.end for range_ in ranges):
                self._lose_all([f"topic {name} was deleted under this query"])
            elif part is not None:
                acknowledged = left_out.get(name)
                if acknowledged is not None:
                    ranges = stream_plan.behind(ranges, acknowledged)
                pieces_of_part, losses = stream_plan.batch_pieces(view, part, ranges, acknowledged)
                self._lose_all(f"{loss.topic}: {loss.reason}" for loss in losses)
                pieces += pieces_of_part
        return split(pieces, root.storage_paths(view), self._options.min_partitions, self._options.max_records)

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. If there is nothing to read, Spark passes a plain `InputPartition`."""
        if not isinstance(partition, ScanPartition):
            return iter(())
        return self._scan.run(partition)

    @one_sentence
    def commit(self, end: Json) -> None:
        """Move the cursors to the end of a committed batch, at most once a second, and log the reports of its tasks."""
        if self._reports is not None:
            self._reports.log_new_reports()
        if self._subscription is not None:
            self._subscription.acknowledge(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Release the subscription. Spark does not always call this method; then the lease expires."""
        finish_undisturbed()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stop(self._committed)
        if self._tail is not None:
            self._tail.close()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _adopt(self, offset: Json) -> StreamOffset:
        """Return the parsed offset. The first call determines this query's consumer and subscription from it."""
        parsed = StreamOffset.from_json(offset)
        if self._identity is None:
            self._identity = StreamIdentity.of_offset(parsed, self._options)
            consumer, subscription = self._identity.consumer, self._identity.subscription
            if subscription is not None:
                end_by_exception()  # `stop` releases the subscription
                root = RootHandle.shared(self._options.root)
                self._subscription = StreamSubscription(root, self._options, consumer, subscription)
        return parsed

    def _looking(self, root: RootHandle) -> Tail:
        """Return this query's reader of journals, the same in each call, so that its view never goes back."""
        if self._tail is None:
            self._tail = spark_tail(root, self._options.fail_on_data_loss)
        return self._tail

    def _pace(self, committed: StreamOffset) -> None:
        """Wait until `IDLE_POLL_S` after the last poll if that poll found no message.

        The poll itself cannot be skipped: for Spark's `processAllAvailable`, a poll without messages means that all
        messages were read.
        """
        if committed == self._committed and self._targets is None:
            time.sleep(max(self._looked_at_s + IDLE_POLL_S - time.monotonic(), 0))
        self._committed = committed

    def _next(
        self,
        view: View,
        committed: StreamOffset,
        parts: Sequence[TopicPart],
        reading: Mapping[str, TopicOffset],
        limit: ReadLimit,
    ) -> StreamOffset | None:
        """Return the next end offset under the limits; None if there is nothing to read."""
        budget = self._budget(limit)
        waiting = stream_plan.backlogs(view, parts, reading, self._targets, budget)
        if self._wait_for_more(waiting, limit):
            return None
        ends = admit(waiting, budget, self._passed_over)
        self._passed_over = count_passed_over(waiting, ends, self._passed_over)
        end = committed.next(stream_plan.read_up_to(reading, ends))
        assert self._identity is not None, "the committed offset was adopted"
        return None if end is committed else self._identity.sign(end)

    def _budget(self, limit: ReadLimit) -> stream_plan.Budget:
        if isinstance(limit, ReadAllAvailable):
            return stream_plan.Budget(None, None)
        return stream_plan.Budget(self._options.max_messages, self._options.max_bytes)

    def _wait_for_more(self, waiting: Sequence[stream_plan.Backlog], limit: ReadLimit) -> bool:
        """Return True while fewer than minOffsetsPerTrigger messages wait, until maxTriggerDelay has passed.

        For AvailableNow, the result is False.
        """
        wanted = self._options.min_messages
        if wanted is None or self._targets is not None or isinstance(limit, ReadAllAvailable):
            return False
        if sum(backlog.rows for backlog in waiting) >= wanted:
            return False
        return time.monotonic() - self._delivered_at_s < self._options.max_delay_s

    def _left_out(self, offset: StreamOffset, *, is_replay: bool) -> Mapping[str, LeftOut]:
        """Return the entries, by full topic name, that a batch skips as acknowledged by a broker's clients."""
        return {} if self._subscription is None else self._subscription.left_out(offset, is_replay=is_replay)

    def _lose_all(self, reasons: Iterable[str]) -> None:
        """Raise an error for the first of `reasons`; if option `failOnDataLoss` is false, log each reason once instead.

        Raises:
            DataLossError: there is a loss, and `failOnDataLoss` is true.
        """
        for reason in reasons:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"Messages may be lost: {reason}; to continue without them, set option failOnDataLoss to false."
                )
            if reason not in self._told:
                self._told.add(reason)
                log.warning("Messages may be lost, and failOnDataLoss is false: %s", reason)


def _check(options: ReadOptions) -> None:
    if options.read_compacted:
        raise InvalidArgumentError(
            "Option readCompacted is not possible in a stream, because compaction would change the messages of a "
            "replayed batch: read the topic in a batch, or keep the newest row of each key in foreachBatch."
        )
    if options.ending is not None or options.ending_time_ms is not None:
        raise InvalidArgumentError("Options endingOffsets and endingTime are not possible in a stream: leave them out.")
