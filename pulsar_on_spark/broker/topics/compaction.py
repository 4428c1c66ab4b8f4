"""Compactions that a broker runs in child processes: on request, and above the policy's threshold.

One compaction runs at a time, at low priority; waiting ones are reported as RUNNING too. The compaction itself is in
`topic.maintenance.compaction`; a killed process changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal

from pulsar_on_spark.broker.runtime.children import run_module
from pulsar_on_spark.broker.runtime.outcomes import remember
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.model.errors import PulsarpyError, TopicBusyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction.compact import Compaction, compact
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import waiting_bytes

log = logging.getLogger(__name__)


_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The state of a topic's compaction, in Pulsar's terms (`LongRunningProcessStatus`).

    Attributes:
        status: NOT_RUN since this broker's start, RUNNING, or the outcome of the last compaction.
        last_error: The reason of ERROR.
    """

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"] = "NOT_RUN"
    last_error: str = ""

    @classmethod
    def of_all(cls, parts: list[CompactionStatus]) -> CompactionStatus:
        """Return the most critical status of a topic's partitions."""
        order = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")
        return min(parts, key=lambda part: order.index(part.status), default=cls())


@dataclass(frozen=True, slots=True)
class CompactionCounts:
    """The counts of a topic's compactions since this broker's start.

    Attributes:
        succeeded: Number of successful compactions.
        failed: Number of failed compactions.
        duration_ms: Duration of the last one, without the wait for its turn.
    """

    succeeded: int = 0
    failed: int = 0
    duration_ms: int = 0


class Compactions:
    """The compactions of one broker. Call all methods in its event loop.

    Args:
        root: The root.
        settings: The interval of checks of thresholds, and the default policies.
        is_elsewhere: Returns True for a topic that another broker serves, which compacts it.
    """

    def __init__(
        self, root: RootHandle, settings: BrokerSettings, is_elsewhere: Callable[[RecentView, TopicName], bool]
    ) -> None:
        self._is_elsewhere = is_elsewhere
        self._root = root
        self._defaults = default_policies(settings)
        self._interval_s = settings.broker_service_compaction_monitor_interval_in_seconds
        self._retain_null_key = settings.topic_compaction_retain_null_key
        self._known: dict[TopicName, CompactionStatus] = {}
        self._counts: dict[TopicName, CompactionCounts] = {}
        self._running: dict[TopicName, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic check of thresholds."""
        self._watching = asyncio.create_task(
            every(self._interval_s, self._compact_due, "Compaction thresholds cannot be checked now")
        )

    async def stop(self) -> None:
        """Stop the checks, and terminate a running compaction."""
        tasks = [*self._running.values(), *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def status(self, topic: TopicName) -> CompactionStatus:
        """Return the compaction state of a topic or partition."""
        return self._known.get(topic, CompactionStatus())

    def counts(self, topic: TopicName) -> CompactionCounts | None:
        """Return the counts of a topic or partition; None if it was never compacted."""
        return self._counts.get(topic)

    def run(self, topic: TopicName, reach: Position | None = None) -> None:
        """Compact a topic or partition in the background.

        Args:
            topic: The topic or partition.
            reach: The known end of its chain: the compaction covers at least the entries before it.

        Raises:
            TopicBusyError: a compaction of it is running.
        """
        if topic in self._running:
            raise TopicBusyError(f"Topic {topic} is being compacted already: wait until the compaction has ended.")
        remember(self._known, topic, CompactionStatus("RUNNING"))
        task = self._running[topic] = asyncio.create_task(self._compact(topic, reach), name=f"compact {topic}")
        task.add_done_callback(lambda _: self._running.pop(topic, None))

    async def _compact(self, topic: TopicName, reach: Position | None) -> None:
        outcome = CompactionStatus("ERROR", "The broker was stopped meanwhile.")
        try:
            async with self._turn:
                began_s = time.monotonic()
                error = await self._process(topic, reach)
            self._count(topic, error is None, time.monotonic() - began_s)
            outcome = CompactionStatus("SUCCESS") if error is None else CompactionStatus("ERROR", error)
        except OSError as error:
            outcome = CompactionStatus("ERROR", f"The compaction could not be started: {error}.")
        finally:
            remember(self._known, topic, outcome)
        if outcome.status == "ERROR":
            log.warning("Topic %s is not compacted: %s", topic, outcome.last_error, extra={"topic": topic})

    async def _process(self, topic: TopicName, reach: Position | None) -> str | None:
        """Run the process; return the reason of a failure, None after a success."""
        position = "" if reach is None else str(reach)
        arguments = [str(self._root.place), topic.full, position, str(int(self._retain_null_key))]
        return await run_module(__name__, *arguments)

    def _count(self, topic: TopicName, has_succeeded: bool, duration_s: float) -> None:
        before = self._counts.get(topic, CompactionCounts())
        succeeded, failed = before.succeeded + has_succeeded, before.failed + (not has_succeeded)
        remember(self._counts, topic, CompactionCounts(succeeded, failed, round(duration_s * 1000)))

    # -- thresholds ----------------------------------------------------------------------------------------------------

    async def _compact_due(self) -> None:
        for topic in await asyncio.to_thread(self._due):
            if topic not in self._running:
                self.run(topic)

    def _due(self) -> list[TopicName]:
        """Return the topics with more uncompacted bytes than their threshold. Runs in a thread."""
        view = self._root.store.view()
        thresholds: dict[TopicPart, int] = {}
        for record in view.all(TopicRecord):
            name = TopicName.parse(record.name)
            if record.partitions is None and not self._is_elsewhere(view, name):
                threshold = effective_policies(view, name, self._defaults).compaction_threshold
                if threshold:
                    thresholds[TopicPart(record.name, record.topic_id, name.partition_index)] = threshold
        if not thresholds:
            return []
        with closing(Tail(self._root)) as tail:
            seen = tail.read_view(list(thresholds))
        due = (part for part, threshold in thresholds.items() if waiting_bytes(seen, part.topic_id) >= threshold)
        return [TopicName.parse(part.name) for part in due]


def main() -> None:
    """Compact one topic. Arguments: the root, the topic, the position to reach ("" for none), 1 to keep null keys."""
    logging.basicConfig(level=logging.WARNING)
    os.nice(_NICE)
    path, topic, position, retain_null_key = sys.argv[1:]
    reach = None
    if position:
        ledger, entry = position.split(":")
        reach = Position(LedgerId(int(ledger)), EntryId(int(entry)))
    try:
        compact(RootHandle.open(path), topic, Compaction(retain_null_key=retain_null_key == "1"), reach=reach)
    except (PulsarpyError, OSError) as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
