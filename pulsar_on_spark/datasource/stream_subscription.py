"""A streaming query's consumer of a subscription: the creation of missing cursors, and the ownership of slots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pulsar_on_spark.datasource.options import ReadOptions
from pulsar_on_spark.datasource.stream_plan import named_rows, unread
from pulsar_on_spark.datasource.topics import UserPositions
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import MetadataError, StorageError
from pulsar_on_spark.model.ids import EARLIEST, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.consumer import SubscriptionConsumer
from pulsar_on_spark.topic.managed_ledger.cursor.handover import holes_left_out
from pulsar_on_spark.topic.managed_ledger.cursor.left_out import LeftOut, acknowledged_for, of_row
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset, TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import planned
from pulsar_on_spark.topic.managed_ledger.subscription.subscriptions import create_subscriptions, restore_expired

log = logging.getLogger(__name__)

TEMPORARY_EXPIRES_AFTER_S = 24 * 3600.0
"""Seconds after its last lease at which `maintain` deletes a subscription that option `subscriptionPrefix` created.

A query that restarts later creates the subscription again, at the position in its checkpoint.
"""


_MAX_ENDS = 10_000


class StreamSubscription:
    """A streaming query's consumer of its subscription. It has no lease before `decide_turn` or `admit_batch`."""

    def __init__(self, root: RootHandle, options: ReadOptions, consumer: str, name: str) -> None:
        self.name = name
        self._root = root
        self._options = options
        self._consumer = SubscriptionConsumer(root, name, options.subscription_type, consumer, options.lease_duration_s)
        self._parts: Sequence[TopicPart] = ()
        self._holes_end: dict[tuple[str, int, int], Position] = {}
        """Ends of the ack holes in topics' cursor rows, cached so that rows with many holes are not decoded often."""

    def decide_turn(
        self, view: View, parts: Sequence[TopicPart], committed: StreamOffset, *, wait: bool, finishing: bool
    ) -> tuple[View, dict[str, TopicOffset]]:
        """Create missing cursors, decide which slots this query owns now, and commit changes of owners.

        Args:
            view: A durable view of the metadata.
            parts: The topics and partitions of the query.
            committed: The offset that Spark has committed.
            wait: As in `SubscriptionConsumer.decide_turn`.
            finishing: True if an AvailableNow query has read its own slots, and now takes all slots without a live
                owner.

        Returns:
            The view on which the decision is based, and by full name the owned slots of each topic with their
            positions.

        Raises:
            ConsumerBusyError: another live consumer owns the subscription.
            ConsumerFencedError, SubscriptionNotFoundError: the cursor was reset or deleted during this query.
        """
        view = self._complete(view, parts, committed)
        self._parts = parts
        turn = self._consumer.decide_turn(view, parts, without_starts(committed), wait=wait, finishing=finishing)
        type_ = self._options.subscription_type
        reading = {
            part.name: planned(TopicId(part.topic_id), type_, turn.actions[part.name], EARLIEST) for part in parts
        }
        # Cursors are read after the records, because an owner writes rows after its record.
        cursors = self._root.store.cursors(durable=True)
        return turn.view, {part.name: self._naming(part, reading[part.name], turn.view, cursors) for part in parts}

    def left_out(self, offset: StreamOffset, *, is_replay: bool) -> dict[str, LeftOut]:
        """Return, by full topic name, the entries that a batch skips because clients of a broker had acknowledged them.

        Args:
            offset: The batch's end offset.
            is_replay: True if an earlier process planned the batch: then a broker may have owned the subscription
                meanwhile.

        Raises:
            MetadataError: a cursor row that the offset names is missing.
        """
        if not is_replay and not any(named_rows(topic.ranges) for topic in offset.topics.values()):
            return {}
        cursors = self._root.store.cursors(durable=True)
        by_topic = {}
        for name, topic in offset.topics.items():
            if topic.ranges:
                rows = cursors.of(topic.topic_id, self.name)
                epoch = max(range_.epoch for range_ in topic.ranges)
                acknowledged = acknowledged_for(name, max(named_rows(topic.ranges), default=None), epoch, rows)
                if acknowledged is not None:
                    by_topic[name] = acknowledged
        return by_topic

    def _naming(self, part: TopicPart, topic: TopicOffset, view: View, cursors: Cursors) -> TopicOffset:
        """Return `topic` with ranges that name the cursor row whose ack holes they skip; unchanged without holes."""
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

    def admit_batch(self, parts: Sequence[TopicPart], offset: StreamOffset) -> None:
        """Check that a batch that an earlier process planned may run now (errors as `decide_turn`)."""
        self._complete(self._root.store.view(durable=True), parts, offset.before_batch())
        self._parts = parts
        self._consumer.admit_batch(parts, offset)

    def acknowledge(self, committed: StreamOffset, *, now: bool = False) -> None:
        """Move the cursors to the positions that Spark has committed. A failure is only logged.

        Args:
            committed: The offset that Spark has committed.
            now: True to move the cursors at once; False to move them at most once a second.
        """
        try:
            self._consumer.acknowledge(committed, now=now)
        except (MetadataError, StorageError) as error:
            log.warning(
                "The cursor of subscription %s was not moved; the next batch tries again: %s",
                self.name,
                error,
                extra={"subscription": self.name},
            )

    def stop(self, committed: StreamOffset | None) -> None:
        """Release the slots at the committed positions, and the lease; with None for the offset, only the lease."""
        self._consumer.stop(self._parts, None if committed is None else without_starts(committed))

    def _complete(self, view: View, parts: Sequence[TopicPart], committed: StreamOffset) -> View:
        """Create the missing cursors of a new query, of added topics, and of an expired subscription.

        A cursor starts:

        - at the earliest message, if the offset lacks the topic: the topic was created after the batch was planned;
        - at the offset's position, if the offset has epoch 0 for the topic: no consumer has read the topic yet;
        - at the offset's position of each slot, if the subscription has expired.

        Any other missing cursor was deleted, also one that disappears while this process reads it. For a deleted
        cursor, `SubscriptionConsumer` raises an error. Returns a view with the cursors that exist now.
        """
        missing = [part for part in parts if view.get(SubscriptionRecord, f"{part.topic_id}/{self.name}") is None]
        starts: dict[TopicPart, Position] = {}
        expired: dict[TopicPart, TopicOffset] = {}
        for part in missing:
            topic = committed.topics.get(part.name)
            if topic is None or topic.topic_id != part.topic_id:
                starts[part] = EARLIEST
            elif self._consumer.is_reading:
                continue
            elif topic.ranges and topic.ranges[0].epoch == 0:
                starts[part] = topic.ranges[0].end
            elif self._options.subscription_prefix is not None:
                expired[part] = topic
        if not (starts or expired):
            return view
        if starts:
            expires_after_s = None if self._options.subscription_prefix is None else TEMPORARY_EXPIRES_AFTER_S
            type_ = self._options.subscription_type
            create_subscriptions(self._root.store, self.name, type_, starts, expires_after_s)
        if expired:
            restore_expired(self._root.store, self.name, expired)
        return self._root.store.view(durable=True)


def first_topics(
    root: RootHandle, view: View, parts: Sequence[TopicPart], options: ReadOptions, name: str
) -> dict[str, TopicOffset]:
    """Return the topics of a new query's initial offset under the subscription `name`, by full name.

    A topic with a cursor gets no ranges, because the query reads it from its cursor. A topic without a cursor gets the
    position at which its cursor will begin: startingOffsets or startingTime, else subscriptionInitialPosition, else the
    end. There is one exception: if other partitions of the same topic, or other topics of the same pattern, have the
    subscription, the topic was created later, and its cursor begins at the earliest message.

    Raises:
        InvalidArgumentError, DataLossError: as `UserPositions.starts`.
    """
    subscribed = [part for part in parts if view.get(SubscriptionRecord, f"{part.topic_id}/{name}") is not None]
    begun = {_family(part, options) for part in subscribed} - {None}
    missing = [part for part in parts if part not in subscribed]
    starts: dict[str, Position] = {}
    if missing:
        starts = UserPositions(root, view, options).starts(parts, options.initial_position or "latest")
    starts |= {part.name: EARLIEST for part in missing if _family(part, options) in begun}
    return {
        part.name: unread(part, starts[part.name]) if part in missing else TopicOffset(TopicId(part.topic_id))
        for part in parts
    }


def without_starts(offset: StreamOffset) -> StreamOffset:
    """Return the offset without the start positions of new cursors: the cursors exist now, with their own positions.

    The offset of a query without a subscription is returned unchanged, because the query has read up to its positions.
    """
    if offset.subscription is None:
        return offset
    topics = {
        name: TopicOffset(topic.topic_id, tuple(range_ for range_ in topic.ranges if range_.epoch > 0))
        for name, topic in offset.topics.items()
    }
    return replace(offset, topics=topics)


def _family(part: TopicPart, options: ReadOptions) -> str | None:
    """Return the pattern or partitioned topic that selects a topic together with others; None for neither."""
    if options.topics.pattern is not None:
        return options.topics.pattern
    return TopicName.parse(part.name).partitioned_base.full if part.partition >= 0 else None
