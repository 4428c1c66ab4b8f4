"""The possible target topics of a write's rows, as its plan carries them to every task: small and quick to unpickle.

A root may have 10,000 topics with ten partitions each. As objects these take 10 MB, and half a second in each task;
here a topic is its name and the ids of its parts in one string, and becomes objects when a row names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path.task_writer import WriteTarget

_SEPARATOR = " "


@dataclass(frozen=True, slots=True)
class WriteTargets:
    """The topics that existed when the driver planned the write, by full name. Picklable.

    Attributes:
        plain: Ids of topics without partitions.
        partitioned: Ids of the partitions of the other topics, in order, separated by blanks.
    """

    plain: Mapping[str, str]
    partitioned: Mapping[str, str]

    @classmethod
    def of(cls, view: View, topics: Iterable[TopicRecord]) -> WriteTargets:
        """Look up the partitions of `topics`, none of which may be a partition itself, in a view."""
        plain: dict[str, str] = {}
        partitioned: dict[str, str] = {}
        for topic in topics:
            if topic.partitions is None:
                plain[topic.name] = topic.topic_id
            else:
                parts = catalog.parts(view, topic)
                partitioned[topic.name] = _SEPARATOR.join(part.topic_id for part in parts)
        return cls(plain, partitioned)

    def get(self, name: TopicName) -> WriteTarget | None:
        """Return the topic to write to; None if it did not exist when the driver planned the write."""
        if (topic_id := self.plain.get(name.full)) is not None:
            return WriteTarget((TopicPart(name.full, topic_id, -1),))
        if (ids := self.partitioned.get(name.full)) is None:
            return None
        numbered = enumerate(ids.split(_SEPARATOR))
        return WriteTarget(tuple(TopicPart(name.partition(index).full, part_id, index) for index, part_id in numbered))
