"""The status of histories: the messages that are built, and the messages that are not built yet."""

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
        is_enabled: True if the policies of the topic or namespace enable the history. A broker's settings, which may
            enable it by default, do not count.
        to: The position before which the messages are in the history table, as `ledger:entry`.
        generation: Number of commits that builds have made.
        rows: Number of messages that builds have added.
        bytes: Size in bytes of the files that builds have added.
        waiting_rows: Number of sealed messages that are not built yet.
        waiting_bytes: Key and value bytes of these messages.
        path_id: The id of the storage path that has the table; None for the root itself, or without a table.
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
    """Return the status of each topic and partition whose history is built or enabled by policies. Pure."""
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
