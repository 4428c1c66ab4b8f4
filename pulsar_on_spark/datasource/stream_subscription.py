"""A streaming query's part in a subscription: it creates what is missing, and reads the slots that are its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.stream_plan import named_rows
from pulsar_on_spark.datasource.topics import UserPositions
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import MetadataError, StorageError
from pulsar_on_spark.model.ids import EARLIEST, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.cursor.handover import holes_left_out
from pulsar_on_spark.topic.cursor.left_out import LeftOut, acknowledged_for, of_row
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.subscription.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.subscription.offsets import StreamOffset, TopicOffset
from pulsar_on_spark.topic.subscription.ownership import planned
from pulsar_on_spark.topic.subscription.subscriptions import create_subscriptions

log = logging.getLogger(__name__)

TEMPORARY_EXPIRES_AFTER_S = 24 * 3600.0
"""A subscription made by `subscriptionPrefix` is deleted by `maintain` when its lease is this old."""


_MAX_ENDS = 10_000


class StreamSubscription:
    """One query's consumer of the subscription that its options name. Takes no lease before `turn` or `admit`."""

    def __init__(self, root: Root, options: ReadOptions, consumer: str) -> None:
        prefix = options.subscription_prefix
        name = options.subscription if prefix is None else f"{prefix}-{consumer}"
        assert name is not None, "the options name a subscription"
        self.name = name
        self._root = root
        self._options = options
        self._consumer = SubscriptionConsumer(root, name, options.subscription_type, consumer, options.lease_duration_s)
        self._parts: Sequence[TopicPart] = ()
        self._holes_end: dict[tuple[str, int, int], Position] = {}
        """Where the ack holes of a topic's cursor row end: rows with many are not decoded at each look."""

    def create_first(self, view: View, parts: Sequence[TopicPart]) -> None:
        """Make the cursors that a new query misses: at startingOffsets, else the initial position, else the end.

        A partition that came while nobody read the subscription starts at its earliest message, as it would have under
        a running query.

        Raises:
            InvalidArgumentError, DataLossError: the options don't fit the topics.
        """
        missing = self._missing(view, parts)
        if not missing:
            return
        default = self._options.initial_position or "latest"
        starts = UserPositions(self._root, view, self._options).starts(parts, default)
        read = {_base(part) for part in parts if part.partition >= 0 and part not in missing}
        self._create({part: EARLIEST if _base(part) in read else starts[part.name] for part in missing})

    def turn(
        self, view: View, parts: Sequence[TopicPart], committed: StreamOffset, *, wait: bool
    ) -> tuple[View, dict[str, TopicOffset]]:
        """The slots that are this query's now, each from where it stands, and the view that says so.

        Raises:
            ConsumerBusyError, ConsumerFencedError, SubscriptionNotFoundError: as `SubscriptionConsumer.turn`.
        """
        view = self._create_new(view, parts, committed)
        self._parts = parts
        found = self._consumer.turn(view, parts, committed, wait=wait)
        type_ = self._options.subscription_type
        reading = {
            part.name: planned(TopicId(part.topic_id), type_, found.actions[part.name], EARLIEST) for part in parts
        }
        # Read after the records, as rows of an owner come after its record.
        cursors = self._root.store.cursors(durable=True)
        return found.view, {part.name: self._naming(part, reading[part.name], found.view, cursors) for part in parts}

    def left_out(self, offset: StreamOffset, *, is_replay: bool) -> dict[str, LeftOut]:
        """What a batch leaves out of topics, by full name: what a broker's clients had acknowledged.

        Args:
            offset: The batch's.
            is_replay: An earlier process planned it, and a broker may have had the subscription since.

        Raises:
            MetadataError: a cursor row that the offset names is not there.
        """
        if not is_replay and not any(named_rows(topic.ranges) for topic in offset.topics.values()):
            return {}
        cursors = self._root.store.cursors(durable=True)
        found = {}
        for name, topic in offset.topics.items():
            if topic.ranges:
                rows = cursors.of(topic.topic_id, self.name)
                epoch = max(range_.epoch for range_ in topic.ranges)
                acknowledged = acknowledged_for(name, max(named_rows(topic.ranges), default=None), epoch, rows)
                if acknowledged is not None:
                    found[name] = acknowledged
        return found

    def _naming(self, part: TopicPart, topic: TopicOffset, view: View, cursors: Cursors) -> TopicOffset:
        """The ranges with the name of the row whose ack holes they leave out, as long as holes lie before them."""
        record = view.get(SubscriptionRecord, f"{part.topic_id}/{self.name}")
        row = None if record is None else holes_left_out(record, cursors.of(part.topic_id, self.name))
        if row is None or not topic.ranges:
            return topic
        key = (part.topic_id, *row.rank)
        if key not in self._holes_end:
            self._holes_end = {key: of_row(row).end, **dict(list(self._holes_end.items())[: _MAX_ENDS - 1])}
        if min(range_.start for range_ in topic.ranges) >= self._holes_end[key]:
            return topic
        return TopicOffset(topic.topic_id, tuple(replace(range_, holes=row.rank) for range_ in topic.ranges))

    def admit(self, parts: Sequence[TopicPart], offset: StreamOffset) -> None:
        """Make sure that a batch which an earlier process planned may run now (errors as `turn`)."""
        self._parts = parts
        self._consumer.admit(parts, offset)

    def acknowledge(self, committed: StreamOffset, *, now: bool = False) -> None:
        """Move the cursors to what Spark has committed; a cursor that lags is no reason to end the query."""
        try:
            self._consumer.acknowledge(committed, now=now)
        except (MetadataError, StorageError) as error:
            log.warning(
                "The cursor of subscription %s was not moved, the next batch makes up for it: %s",
                self.name,
                error,
                extra={"subscription": self.name},
            )

    def stop(self, committed: StreamOffset | None) -> None:
        """Give the slots back at the committed position, and release the lease."""
        self._consumer.stop(self._parts, committed)

    def _create_new(self, view: View, parts: Sequence[TopicPart], committed: StreamOffset) -> View:
        """Cursors for topics that came after the last batch was planned: at their earliest message."""
        known = {name: topic.topic_id for name, topic in committed.topics.items()}
        missing = [part for part in self._missing(view, parts) if known.get(part.name) != part.topic_id]
        if not missing:
            return view
        self._create(dict.fromkeys(missing, EARLIEST))
        return self._root.store.view(durable=True)

    def _missing(self, view: View, parts: Sequence[TopicPart]) -> list[TopicPart]:
        return [part for part in parts if view.get(SubscriptionRecord, f"{part.topic_id}/{self.name}") is None]

    def _create(self, starts: dict[TopicPart, Position]) -> None:
        expires_after_s = None if self._options.subscription_prefix is None else TEMPORARY_EXPIRES_AFTER_S
        create_subscriptions(self._root.store, self.name, self._options.subscription_type, starts, expires_after_s)


def _base(part: TopicPart) -> str:
    return TopicName.parse(part.name).partitioned_base.full
