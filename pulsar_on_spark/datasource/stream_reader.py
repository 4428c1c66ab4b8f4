"""Reading as a stream: `spark.readStream.format("pulsarpy")`, with or without a subscription.

Spark calls the offset methods on one instance in a runner process, and `read` on copies of another in the tasks. End
offsets are self-contained: a batch is planned from its end alone, because Spark does not keep the start of batch 0.
`latestOffset(start)` is also where cursors move: its start is in Spark's commit log, the last one of AvailableNow too.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pulsar_on_spark.datasource.admission import Budget, admit
from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.scan import Scan, ScanPartition, ScanPiece, split
from pulsar_on_spark.datasource.topics import UserPositions, selected_parts
from pulsar_on_spark.datasource.typed import ReadSchema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import CommitConflictError, DataLossError, InvalidArgumentError, StorageError
from pulsar_on_spark.model.ids import EARLIEST, Position, TopicId
from pulsar_on_spark.topic import chain
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.offsets import ALL, SlotRange, StreamOffset, TopicOffset
from pulsar_on_spark.topic.ownership import planned
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.slot_filter import SlotFilter
from pulsar_on_spark.topic.slots import SLOTTED
from pulsar_on_spark.topic.subscriptions import create_subscriptions

log = logging.getLogger(__name__)

TEMPORARY_EXPIRES_AFTER_S = 24 * 3600.0
"""A subscription made by `subscriptionPrefix` is deleted by `maintain` when its lease is this old."""
IDLE_POLL_S = 0.1
"""Spark asks for new messages every 10 ms; an idle stream looks at the metadata at most so often."""
_RUNNER = "python_streaming_source_runner"

Json = dict[str, Any]


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The offsets and batches of one streaming query."""

    def __init__(self, options: ReadOptions, schema: ReadSchema) -> None:
        _check(options)
        slotted = options.subscription_type in ("Shared", "Key_Shared")
        slot_filter = SlotFilter(by_key=options.subscription_type == "Key_Shared") if slotted else None
        self._options = options
        self._scan = Scan(options.root, schema, options.fail_on_data_loss, slot_filter)
        self._consumer_id = options.consumer_name or uuid.uuid4().hex
        self._consumer: SubscriptionConsumer | None = None
        self._committed: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        self._targets: dict[str, Position] | None = None
        self._looked_at_s = float("-inf")
        self._delivered_at_s = time.monotonic()
        if any(_RUNNER in argument for argument in sys.orig_argv):
            # Spark ends the runner by SIGTERM. As an exception it unwinds locks, and the runner then calls stop().
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    # -- Spark's interface -----------------------------------------------------------------------------------------

    @one_sentence
    def initialOffset(self) -> Json:
        """Where a new query starts. Under a subscription its cursors are made here, and no lease is taken yet."""
        root, view = self._view()
        parts = selected_parts(view, self._options.topics)
        if self._subscription is None:
            starts = UserPositions(root, view, self._options).starts(parts, "latest")
            topics = {part.name: _whole(part, starts[part.name]) for part in parts}
        else:
            self._create_subscriptions(root, view, parts)
            topics = {part.name: TopicOffset(TopicId(part.topic_id)) for part in parts}
        return StreamOffset(self._consumer_id, topics).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a micro-batch, from the options."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @one_sentence
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix how far this run reads: what is there now."""
        _, view = self._view()
        self._targets = {
            part.name: chain.read_limit(view, part.topic_id) for part in selected_parts(view, self._options.topics)
        }

    @one_sentence
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch; `start` verbatim where there is nothing new. `start` is committed: cursors move."""
        committed = self._adopt(StreamOffset.from_json(start))
        if self._polled_just_now(committed):
            return start
        root, view = self._view()
        parts = selected_parts(view, self._options.topics)
        self._require_known_topics(committed, parts)
        if self._subscription is None:
            reading = self._whole_topics(committed, parts)
        else:
            self._acknowledge(committed)
            self._create_subscriptions(
                root, view, [part for part in parts if part.name not in committed.topics], EARLIEST
            )
            reading = self._owned_slots(root, parts, committed)
            _, view = self._view()
        end = self._advance(view, committed, parts, reading, limit)
        if end is committed:
            self._acknowledge(committed, now=True)
            self._looked_at_s = time.monotonic()
            return start
        self._delivered_at_s = time.monotonic()
        self._planned = end
        return end.to_json()

    @one_sentence
    def reportLatestOffset(self) -> Json | None:
        """The topics' ends, and the backlog behind the batch that is running: in `query.lastProgress`."""
        current = self._planned or self._committed
        if current is None:
            return None
        root, view = self._view()
        parts = selected_parts(view, self._options.topics)
        ends = {part.name: chain.read_limit(view, part.topic_id) for part in parts}
        messages = size = 0
        for part in parts:
            topic = current.topics.get(part.name)
            for range_ in topic.ranges if topic is not None and topic.topic_id == part.topic_id else ():
                plan = _plan(view, part, range_.end, ends[part.name])
                share = 1.0 if range_.slots == ALL else len(range_.numbers) / len(SLOTTED)
                messages += round(plan.rows * share)
                size += round(plan.bytes * share)
        return {
            "backlogBytes": size,
            "backlogMessages": messages,
            "topics": {name: [end.ledger, end.entry] for name, end in sorted(ends.items())},
        }

    @one_sentence
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch, from its end alone: the same messages at each replay."""
        offset = self._adopt(StreamOffset.from_json(end))
        root, view = self._view()
        if self._subscription is not None and self._planned is None:
            self._replay(root, view, offset)
        self._planned = offset
        pieces: list[ScanPiece] = []
        parts = {part.name: part for part in selected_parts(view, self._options.topics)}
        for name, topic in sorted(offset.topics.items()):
            part = parts.get(name)
            if part is None or part.topic_id != topic.topic_id:
                self._lose(f"topic {name} was deleted{'' if part is None else ' and created again'} under this query")
                continue
            for range_ in topic.ranges:
                plan = _plan(view, part, range_.start, range_.end)
                for loss in plan.losses:
                    self._lose(f"{loss.topic}: {loss.reason}")
                slots = None if range_.slots == ALL else frozenset(range_.numbers)
                pieces += (ScanPiece(slice_, slots) for slice_ in plan.slices)
        return split(pieces, root.storage_paths(view), self._options.min_partitions, self._options.max_records)

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's share (Spark passes a bare partition where there is nothing to read)."""
        if not isinstance(partition, ScanPartition):
            return iter(())
        return self._scan.run(partition)

    @one_sentence
    def commit(self, end: Json) -> None:
        """Move the cursors to a batch that Spark has committed, at most once a second."""
        self._acknowledge(self._adopt(StreamOffset.from_json(end)))

    def stop(self) -> None:
        """Give the subscription back. Not always called: a lease that is not released runs out."""
        if self._consumer is None:
            return
        consumer, self._consumer = self._consumer, None
        _, view = self._view()
        consumer.stop(selected_parts(view, self._options.topics), self._committed)

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def _subscription(self) -> str | None:
        if self._options.subscription_prefix is not None:
            return f"{self._options.subscription_prefix}-{self._consumer_id}"
        return self._options.subscription

    def _view(self) -> tuple[Root, View]:
        root = Root.shared(self._options.root)
        return root, root.store.view(durable=True)

    def _adopt(self, offset: StreamOffset) -> StreamOffset:
        """A restarted query goes on as the consumer that its checkpoint names."""
        if self._consumer is None:
            self._consumer_id = offset.consumer
        return offset

    def _polled_just_now(self, committed: StreamOffset) -> bool:
        """Whether this poll comes so soon after an idle one that it isn't worth a look."""
        same = committed == self._committed
        self._committed = committed
        return same and self._targets is None and time.monotonic() - self._looked_at_s < IDLE_POLL_S

    def _require_known_topics(self, committed: StreamOffset, parts: Sequence[TopicPart]) -> None:
        ids = {part.name: TopicId(part.topic_id) for part in parts}
        _, changes = committed.reconcile(ids)
        for name in changes.vanished:
            again = " and created again" if name in ids else ""
            self._lose(f"topic {name} was deleted{again} under this query")

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"Messages may be lost: {what}; to go on without them, set option failOnDataLoss to false."
            )
        log.warning("Messages may be lost, and failOnDataLoss is false: %s", what)

    def _whole_topics(self, committed: StreamOffset, parts: Sequence[TopicPart]) -> dict[str, TopicOffset]:
        """Without a subscription: every topic from where the last batch ended, new ones from the earliest message."""
        offset, _ = committed.reconcile({part.name: TopicId(part.topic_id) for part in parts})
        return {
            name: TopicOffset(
                topic.topic_id, tuple(SlotRange(r.slots, r.epoch, r.end, r.end, r.holes) for r in topic.ranges)
            )
            for name, topic in offset.topics.items()
        }

    def _owned_slots(self, root: Root, parts: Sequence[TopicPart], committed: StreamOffset) -> dict[str, TopicOffset]:
        """Under a subscription: the slots that are this consumer's now, from where they stand."""
        consumer = self._joined(root)
        actions = consumer.turn(parts, committed, wait=self._targets is not None)
        return {
            part.name: planned(TopicId(part.topic_id), self._options.subscription_type, actions[part.name], EARLIEST)
            for part in parts
        }

    def _joined(self, root: Root) -> SubscriptionConsumer:
        name = self._subscription
        assert name is not None, "only a subscription has consumers"
        if self._consumer is None:
            options = self._options
            self._consumer = SubscriptionConsumer(
                root, name, options.subscription_type, self._consumer_id, options.lease_duration_s
            )
        return self._consumer

    def _replay(self, root: Root, view: View, offset: StreamOffset) -> None:
        """Before a batch that an earlier process planned: join the subscription and make sure that nobody has it."""
        known = [part for part in selected_parts(view, self._options.topics) if part.name in offset.topics]
        self._create_subscriptions(root, view, known, EARLIEST)
        self._joined(root).admit(known, offset)

    def _create_subscriptions(
        self, root: Root, view: View, parts: Sequence[TopicPart], start: Position | None = None
    ) -> None:
        """Make the cursors that are missing, by the order of precedence: startingOffsets, initial position, latest."""
        name = self._subscription
        if name is None or not parts:
            return
        if start is None:
            default = self._options.initial_position or "latest"
            starts = UserPositions(root, view, self._options).starts(parts, default)
        else:
            starts = {part.name: start for part in parts}
        temporary = self._options.subscription_prefix is not None
        create_subscriptions(
            root.store,
            name,
            self._options.subscription_type,
            {part: starts[part.name] for part in parts},
            TEMPORARY_EXPIRES_AFTER_S if temporary else None,
        )

    def _advance(
        self,
        view: View,
        committed: StreamOffset,
        parts: Sequence[TopicPart],
        reading: Mapping[str, TopicOffset],
        limit: ReadLimit,
    ) -> StreamOffset:
        """The next end offset under the limits; `committed` itself where there is nothing to read."""
        budget = self._budget(limit)
        backlogs = []
        for part in parts:
            ranges = reading[part.name].ranges
            if ranges:
                start = min(range_.start for range_ in ranges)
                end = chain.read_limit(view, part.topic_id)
                if self._targets is not None:
                    end = min(end, self._targets.get(part.name, EARLIEST))
                backlogs.append((part.name, _plan(view, part, start, end), start, max(start, end)))
        total = sum(plan.rows for _, plan, _, _ in backlogs)
        if self._wait_for_more(total, limit):
            return committed
        ends = admit(backlogs, budget)
        topics = {
            name: TopicOffset(
                topic.topic_id,
                tuple(
                    SlotRange(r.slots, r.epoch, r.start, max(r.start, ends.get(name, r.start)), r.holes)
                    for r in topic.ranges
                ),
            )
            for name, topic in reading.items()
        }
        return committed.next(topics)

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadMaxRows):
            return Budget(limit.max_rows, self._options.max_bytes)
        if isinstance(limit, ReadMaxBytes):
            return Budget(None, limit.max_bytes)
        return Budget(None, None)

    def _wait_for_more(self, rows: int, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: wait for so many messages, at most maxTriggerDelay; AvailableNow takes what is there."""
        wanted = self._options.min_messages
        if wanted is None or self._targets is not None or rows >= wanted:
            return False
        return time.monotonic() - self._delivered_at_s < self._options.max_delay_s

    def _acknowledge(self, committed: StreamOffset, *, now: bool = False) -> None:
        if self._consumer is None:
            return
        try:
            self._consumer.acknowledge(committed, now=now)
        except (CommitConflictError, StorageError) as error:
            # The next committed batch makes up for it: a cursor that lags is no reason to end the query.
            log.warning("The cursor of subscription %s was not moved: %s", self._subscription, error)


def _plan(view: View, part: TopicPart, start: Position, end: Position) -> chain.RangePlan:
    return chain.plan_range(view, part.name, part.topic_id, part.partition, start, end)


def _whole(part: TopicPart, position: Position) -> TopicOffset:
    return TopicOffset(TopicId(part.topic_id), (SlotRange(ALL, 0, position, position),))


def _check(options: ReadOptions) -> None:
    if options.ending is not None or options.ending_time_ms is not None:
        raise InvalidArgumentError("Options endingOffsets and endingTime are not possible in a stream: leave them out.")
