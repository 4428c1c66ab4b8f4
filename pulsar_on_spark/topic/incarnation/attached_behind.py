"""Behind which of a broker's ledgers Spark has attached others: the broker goes on behind those, in due time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.incarnation.ledgers import has_attached_behind
from pulsar_on_spark.topic.incarnation.open_ledger import OpenLedger

SWITCH_EVERY_S = 10.0
"""A topic's ledger is switched for Spark's writes at most so often; until then these wait behind it."""


class AttachedBehind:
    """The topics whose ledger is to be switched."""

    def __init__(self) -> None:
        self._topics: set[TopicId] = set()
        self._switched_s: dict[TopicId, float] = {}
        self._looked_at = -1

    def look(self, view: View, open_topics: Iterable[TopicId]) -> None:
        """Take in what has changed in the metadata since the last look."""
        changed = view.state.chains_since(self._looked_at)
        self._looked_at = view.state.revision
        topics = list(open_topics) if changed is None else [TopicId(each) for each in changed.shaped]
        self._topics.update(each for each in topics if has_attached_behind(view, each))

    def due(self, ledgers: Mapping[TopicId, OpenLedger], now_s: float) -> list[TopicPart]:
        """The topics to switch now, of those that have these open ledgers."""
        self._topics.intersection_update(ledgers)
        last_s = {topic_id: self._switched_s.get(topic_id, float("-inf")) for topic_id in self._topics}
        return [ledgers[topic_id].part for topic_id, at_s in last_s.items() if now_s - at_s >= SWITCH_EVERY_S]

    def tried(self, topic_id: TopicId) -> None:
        """A new ledger was asked for; if the topic got none, the next look finds it again where it must."""
        self._topics.discard(topic_id)

    def switched(self, topic_id: TopicId, now_s: float) -> None:
        """The topic's entries go to the new ledger."""
        self._switched_s[topic_id] = now_s
