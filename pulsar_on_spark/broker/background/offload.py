"""Offloads that clients request from a broker: child processes at low priority, one at a time.

Segments beyond the offload thresholds of policies are offloaded by housekeeping. If a process is killed, the next
request, or housekeeping, continues its offload.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from typing import Final

from pulsar_on_spark.broker.runtime.children import run_module
from pulsar_on_spark.broker.runtime.topic_work import TopicWork
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER
from pulsar_on_spark.topic.managed_ledger.chain.chain import read_limit

MAX_SECONDS: Final = 3_600.0
"""Time in seconds after which an offload begins no further file, because other topics' offloads wait for it."""
_NICE: Final = 10


class Offloads(TopicWork):
    """The requested offloads of one broker. Call all methods in its event loop.

    Args:
        root: The open root.
        defaults: The broker's default policies.
    """

    def __init__(self, root: RootHandle, defaults: Policies) -> None:
        super().__init__("offload")
        self._root = root
        self._policies = defaults.model_dump_json(by_alias=True)

    def run(self, topic: TopicName, before: Position) -> None:
        """Start to offload a topic's sealed segments before a position; return at once.

        Args:
            topic: A topic without partitions, or a partition.
            before: The position after the last entry to offload.

        Raises:
            TopicBusyError: an offload of the topic is running or waits for its turn.
        """
        arguments = str(self._root.place), topic.full, str(before), self._policies
        self.begin(topic, lambda: run_module(__name__, *arguments))


def first_hot(view: View, topic: TopicName) -> Position | None:
    """Return the position of the first entry of a topic that is not offloaded; None if the topic was deleted.

    If all sealed segments are offloaded, this is the end of the sealed entries.
    """
    record = view.get(TopicRecord, topic.full)
    if record is None:
        return None
    for segment in view.all(SegmentRecord, record.topic_id):
        if not is_cold(view, segment):
            return Position(LedgerId(segment.ledger_id), EntryId(segment.first_entry))
    return read_limit(view, record.topic_id)


def is_cold(view: RecentView, segment: SegmentRecord) -> bool:
    """Return True if a segment is offloaded: its file is on cold storage paths."""
    file = view.get(FileRecord, segment.file_id)
    return file is not None and file.is_cold


def main() -> None:
    """Offload one topic, as a child process.

    The program's arguments are the root's directory or URL, the topic, the position after the last entry to offload,
    and the broker's default policies as JSON.
    """
    logging.basicConfig(level=logging.WARNING)
    os.nice(_NICE)
    place, topic, position, policies = sys.argv[1:]
    ledger, entry = position.split(":")
    request = OffloadRequest(TopicName.parse(topic), Position(LedgerId(int(ledger)), EntryId(int(entry))))
    limits = replace(BESIDE_A_BROKER, max_seconds=MAX_SECONDS)
    try:
        done = offload(RootHandle.open(place), request, Policies.model_validate_json(policies), limits)
    except (PulsarpyError, OSError) as error:
        sys.exit(" ".join(str(error).split()))
    if done.problems:
        sys.exit(" ".join(done.problems[0].split()))
    if not done.is_complete:
        sys.exit(
            f"The offload of {topic} stopped after {MAX_SECONDS:g} s, before all segments were offloaded: repeat it."
        )


if __name__ == "__main__":
    main()
