"""Statistics of topics for operators: a snapshot of the stored contents, combined with the broker's counters."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.broker.observe.backlogs import BacklogCounter, Contents, CursorPosition
from pulsar_on_spark.broker.observe.internal_stats import internal_stats
from pulsar_on_spark.broker.observe.meters import Meters
from pulsar_on_spark.broker.observe.models import InternalStats, TopicStats
from pulsar_on_spark.broker.observe.topic_stats import topic_stats
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.root_handle import RootHandle


class Overview:
    """A broker's statistics of topics for operators. Call its methods in the broker's event loop.

    Args:
        root: The open root.
        topics: The broker's loaded topics.
        url: The broker's URL, which is reported as the topics' owner.
    """

    def __init__(self, root: RootHandle, topics: Topics, url: str) -> None:
        self._topics = topics
        self._url = url
        self._write_quorum = root.quorum.write
        self._backlogs = BacklogCounter(root)
        self.meters = Meters(topics)

    def start(self) -> None:
        """Start sampling rates."""
        self.meters.start()

    async def stop(self) -> None:
        """Stop sampling and close the journals' files."""
        await self.meters.stop()
        await self._backlogs.close()

    async def stats(self, records: Sequence[TopicRecord]) -> dict[str, TopicStats]:
        """Return the stats of topics without partitions, or of partitions, by full name.

        Raises the errors of `BacklogCounter.read_contents`.
        """
        loaded, contents = await self._snapshot(records)
        return {
            record.name: topic_stats(
                record, loaded.get(record.topic_id), contents[record.topic_id], self.meters.rates, self._url
            )
            for record in records
        }

    async def internal_stats(self, records: Sequence[TopicRecord]) -> dict[str, InternalStats]:
        """Return the stats of ledgers and cursors of topics or partitions, by full name (errors as `stats`)."""
        loaded, contents = await self._snapshot(records)
        return {
            record.name: internal_stats(
                record, loaded.get(record.topic_id), contents[record.topic_id], self._write_quorum
            )
            for record in records
        }

    async def contents(self, record: TopicRecord) -> Contents:
        """Return the contents of a topic, with the backlog of each subscription (errors as `stats`)."""
        _, contents = await self._snapshot([record])
        return contents[record.topic_id]

    async def _snapshot(self, records: Sequence[TopicRecord]) -> tuple[dict[str, BrokerTopic], dict[str, Contents]]:
        ids = {record.topic_id for record in records}
        loaded: dict[str, BrokerTopic] = {topic.topic_id: topic for topic in self._topics if topic.topic_id in ids}
        ends: dict[str, Position] = {topic_id: topic.chain.end for topic_id, topic in loaded.items()}
        positions: dict[tuple[str, str], CursorPosition] = {
            (topic_id, subscription.name): CursorPosition(
                subscription.kept.cursor.mark_delete, subscription.kept.cursor.ack_holes
            )
            for topic_id, topic in loaded.items()
            for subscription in topic.subscriptions.all
            if isinstance(subscription.kept, OpenCursor) and subscription.kept.lost is None
        }
        return loaded, await self._backlogs.read_contents([_part(record) for record in records], ends, positions)


def _part(record: TopicRecord) -> TopicPart:
    index = TopicName.parse(record.name).partition_index if record.partition_of else -1
    return TopicPart(record.name, record.topic_id, index)
