"""Offloads that clients request from a broker: child processes at low priority, one at a time.

What is beyond the thresholds of policies is offloaded by housekeeping. A killed process changes nothing: the next
request, or housekeeping, continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, replace
from typing import Final, Literal

from pulsar_on_spark.broker.runtime.children import run_module
from pulsar_on_spark.broker.runtime.outcomes import remember
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.model.errors import PulsarpyError, TopicBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadRequest, offload
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER
from pulsar_on_spark.topic.managed_ledger.chain.chain import read_limit

log = logging.getLogger(__name__)

MAX_SECONDS: Final = 3_600.0
"""Time after which an offload begins no further file: others wait for their turn."""
_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """The state of a topic's last requested offload, in Pulsar's terms (`OffloadProcessStatus`).

    Attributes:
        status: NOT_RUN since this broker's start, RUNNING, or the outcome.
        last_error: The reason of ERROR.
        first_unoffloaded: The first position that is not offloaded, after SUCCESS.
    """

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"] = "NOT_RUN"
    last_error: str = ""
    first_unoffloaded: Position | None = None


class Offloads:
    """The requested offloads of one broker. Call all methods in its event loop.

    Args:
        root: The root.
        defaults: The broker's default policies.
    """

    def __init__(self, root: RootHandle, defaults: Policies) -> None:
        self._root = root
        self._policies = defaults.model_dump_json(by_alias=True)
        self._known: dict[TopicName, OffloadStatus] = {}
        self._running: dict[TopicName, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)

    async def stop(self) -> None:
        """Terminate a running offload."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def status(self, topic: TopicName) -> OffloadStatus:
        """Return the state of the last offload of a topic or partition."""
        return self._known.get(topic, OffloadStatus())

    def run(self, topic: TopicName, before: Position) -> None:
        """Offload a topic's sealed segments before a position in the background.

        Args:
            topic: A topic without partitions, or a partition.
            before: The position.

        Raises:
            TopicBusyError: an offload of the topic is running.
        """
        if topic in self._running:
            raise TopicBusyError(f"Topic {topic} is being offloaded already: wait until the offload has ended.")
        remember(self._known, topic, OffloadStatus("RUNNING"))
        task = self._running[topic] = asyncio.create_task(self._offload(topic, before), name=f"offload {topic}")
        task.add_done_callback(lambda _: self._running.pop(topic, None))

    async def _offload(self, topic: TopicName, before: Position) -> None:
        outcome = OffloadStatus("ERROR", "The broker was stopped meanwhile.")
        try:
            async with self._turn:
                error = await run_module(__name__, str(self._root.place), topic.full, str(before), self._policies)
            if error is None:
                first = await asyncio.to_thread(lambda: first_hot(self._root.store.view(), topic))
                outcome = OffloadStatus("SUCCESS", first_unoffloaded=first)
            else:
                outcome = OffloadStatus("ERROR", error)
        except (OSError, PulsarpyError) as error:
            outcome = OffloadStatus("ERROR", f"The offload could not be run: {error}")
        finally:
            remember(self._known, topic, outcome)
        if outcome.status == "ERROR":
            log.warning("Topic %s is not offloaded: %s", topic, outcome.last_error, extra={"topic": topic})


def first_hot(view: View, topic: TopicName) -> Position | None:
    """Return the first position of a topic that is not offloaded; None if the topic was deleted."""
    record = view.get(TopicRecord, topic.full)
    if record is None:
        return None
    for segment in view.all(SegmentRecord, record.topic_id):
        if not is_cold(view, segment):
            return Position(LedgerId(segment.ledger_id), EntryId(segment.first_entry))
    return read_limit(view, record.topic_id)


def is_cold(view: RecentView, segment: SegmentRecord) -> bool:
    """Return True if a segment is in an offloaded file."""
    file = view.get(FileRecord, segment.file_id)
    return file is not None and file.is_cold


def main() -> None:
    """Offload one topic. Arguments: the root, the topic, the position, the broker's policies as JSON."""
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
        sys.exit(f"The offload was ended after {MAX_SECONDS:g} s, before all segments were offloaded: repeat it.")


if __name__ == "__main__":
    main()
