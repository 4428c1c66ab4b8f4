"""The possible target topics of a write's rows, in a form that is small and quick to unpickle in every task.

A root may have 10,000 topics with ten partitions each. Pickled as objects, they would take 10 MB, and each task would
spend half a second on them. So each topic is stored as its name and one string with the ids of its partitions, and
becomes objects when a row names it.
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
        plain: The topic id of each topic without partitions, by full name.
        partitioned: The topic ids of the partitions of each partitioned topic, in order, separated by blanks.
    """

    plain: Mapping[str, str]
    partitioned: Mapping[str, str]

    @classmethod
    def of(cls, view: View, topics: Iterable[TopicRecord]) -> WriteTargets:
        """Return the targets for `topics`, none of which may be a partition; their partitions are taken from `view`."""
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
        """Return a topic's partitions, or the topic itself without partitions; None if it did not exist at planning."""
        if (topic_id := self.plain.get(name.full)) is not None:
            return WriteTarget((TopicPart(name.full, topic_id, -1),))
        if (ids := self.partitioned.get(name.full)) is None:
            return None
        numbered = enumerate(ids.split(_SEPARATOR))
        return WriteTarget(tuple(TopicPart(name.partition(index).full, part_id, index) for index, part_id in numbered))
