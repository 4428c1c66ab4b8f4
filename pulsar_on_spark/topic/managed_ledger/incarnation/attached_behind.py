"""The broker's open ledgers that hide ledgers attached by Spark: the broker switches to new ones at a limited rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import has_attached_behind
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger

SWITCH_EVERY_S = 10.0
"""A topic's ledger is switched for Spark's writes so often in the long run: each switch leaves ledgers for good."""
SWITCHES_SAVED = 360
"""Switches that a topic may be ahead of its ration, an hour's; without any left, Spark's writes wait for its ledger."""


class AttachedBehind:
    """The topics whose ledger must be switched."""

    def __init__(self) -> None:
        self._topics: set[TopicId] = set()
        self._covered_s: dict[TopicId, float] = {}
        """The time until which a topic's past switches are its ration; entries of the past are left out."""
        self._looked_at = -1

    def scan_changes(self, view: View, open_topics: Iterable[TopicId]) -> None:
        """Find topics to switch among those that have changed in the metadata since the last call."""
        changed = view.state.chains_since(self._looked_at)
        self._looked_at = view.state.revision
        topics = list(open_topics) if changed is None else [TopicId(each) for each in changed.shaped]
        self._topics.update(each for each in topics if has_attached_behind(view, each))

    def due(self, ledgers: Mapping[TopicId, OpenLedger], now_s: float) -> list[TopicPart]:
        """Return the topics to switch now, among those with these open ledgers."""
        self._topics.intersection_update(ledgers)
        self._covered_s = {topic_id: until_s for topic_id, until_s in self._covered_s.items() if until_s > now_s}
        latest_s = now_s + (SWITCHES_SAVED - 1) * SWITCH_EVERY_S
        return [ledgers[each].part for each in self._topics if self._covered_s.get(each, now_s) <= latest_s]

    def on_switch_requested(self, topic_id: TopicId) -> None:
        """Remove a topic for which a new ledger was requested; if the request fails, a later scan finds it again."""
        self._topics.discard(topic_id)

    def switched(self, topic_id: TopicId, now_s: float) -> None:
        """Count a switch: the topic's entries go to the new ledger."""
        self._covered_s[topic_id] = self._covered_s.get(topic_id, now_s) + SWITCH_EVERY_S
