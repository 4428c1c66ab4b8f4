"""Switches of a broker's topics to new ledgers after Spark has attached later ledgers, which the open ledger hides.

Readers stop at the first open ledger. So the broker closes it and opens a new ledger, at a limited rate for each topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import TopicId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.ledgers import has_attached_behind
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger

SWITCH_EVERY_S = 10.0
"""Minimum mean seconds between two such switches of a topic. Each switch adds a ledger to the chain for good."""
SWITCHES_SAVED = 360
"""Maximum number of switches of a topic in a burst, which corresponds to an hour without switches."""


class AttachedBehind:
    """The topics whose open ledger hides a ledger that Spark attached, and the rate limit for their switches."""

    def __init__(self) -> None:
        self._topics: set[TopicId] = set()
        self._covered_s: dict[TopicId, float] = {}
        """By topic, the time at which its past switches no longer count towards the rate limit (monotonic clock)."""
        self._looked_at = -1

    def scan_changes(self, view: View, open_topics: Iterable[TopicId]) -> None:
        """Find the topics to switch among those whose chains have changed in the metadata since the last call."""
        changed = view.state.chains_since(self._looked_at)
        self._looked_at = view.state.revision
        topics = list(open_topics) if changed is None else [TopicId(each) for each in changed.shaped]
        self._topics.update(each for each in topics if has_attached_behind(view, each))

    def due(self, ledgers: Mapping[TopicId, OpenLedger], now_s: float) -> list[TopicPart]:
        """Return the topics with an open ledger in `ledgers` that are to be switched at `now_s` (monotonic clock)."""
        self._topics.intersection_update(ledgers)
        self._covered_s = {topic_id: until_s for topic_id, until_s in self._covered_s.items() if until_s > now_s}
        latest_s = now_s + (SWITCHES_SAVED - 1) * SWITCH_EVERY_S
        return [ledgers[each].part for each in self._topics if self._covered_s.get(each, now_s) <= latest_s]

    def on_switch_requested(self, topic_id: TopicId) -> None:
        """Remove a topic for which a new ledger was requested. A later scan can add the topic again."""
        self._topics.discard(topic_id)

    def switched(self, topic_id: TopicId, now_s: float) -> None:
        """Count a completed switch of a topic towards the rate limit."""
        self._covered_s[topic_id] = self._covered_s.get(topic_id, now_s) + SWITCH_EVERY_S
