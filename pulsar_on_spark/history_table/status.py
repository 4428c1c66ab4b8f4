"""The state of histories: what is built, and what is not built yet."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.history_table.recorded import end_of_messages, recorded_progress
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.steps import count_waiting


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """The history of a topic or partition.

    Attributes:
        name: The full name of the topic or partition.
        is_enabled: True if its policies ask for the history. Defaults of a broker's settings do not count.
        to: The position before which its messages are in the table.
        generation: Number of builds.
        rows: Number of messages that builds have added.
        bytes: Size of the files that builds have added.
        waiting_rows: Number of sealed messages that are not built.
        waiting_bytes: Their key and value bytes.
        path_id: The storage path that the table is on; None for the root itself, or if nothing is built.
    """

    name: str
    is_enabled: bool
    to: str
    generation: int
    rows: int
    bytes: int
    waiting_rows: int
    waiting_bytes: int
    path_id: int | None


def statuses(view: View) -> list[HistoryStatus]:
    """Return the histories that exist or that policies ask for, partition by partition. Pure."""
    found = []
    for topic in catalog.topics(view):
        is_enabled = effective_policies(view, TopicName.parse(topic.name)).history.enabled
        table = view.get(HistoryTableRecord, topic.topic_id)
        for part in catalog.parts(view, topic):
            built = recorded_progress(view, part.topic_id)
            if not (is_enabled or built.generation):
                continue
            start = max(built.to, chain.trimmed_before(view, part.topic_id))
            waiting = count_waiting(view, part.topic_id, start, end_of_messages(view, part.topic_id))
            found.append(
                HistoryStatus(
                    part.name,
                    is_enabled,
                    str(built.to),
                    built.generation,
                    built.rows,
                    built.bytes,
                    waiting.rows,
                    waiting.bytes,
                    None if table is None else table.path_id,
                )
            )
    return found
