"""Last outcomes of background work, by topic, for a limited number of topics."""

from __future__ import annotations

from typing import Final, TypeVar

from pulsar_on_spark.model.names import TopicName

_MAX_KNOWN: Final = 10_000
"""Maximum number of topics whose last outcome is remembered."""
_T = TypeVar("_T")


def remember(outcomes: dict[TopicName, _T], topic: TopicName, last: _T) -> None:
    """Store a topic's last outcome, evicting the oldest one above the limit."""
    outcomes.pop(topic, None)
    outcomes[topic] = last
    if len(outcomes) > _MAX_KNOWN:
        del outcomes[next(iter(outcomes))]
