"""Compactions that a broker runs in child processes: on request, and above the policy's threshold.

One compaction runs at a time, at low priority. The compaction itself is in `topic.maintenance.compaction`; a killed
process changes nothing.
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
from typing import Final

from pulsar_on_spark.broker.runtime.children import run_module
from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.topic_work import TopicWork, remember
from pulsar_on_spark.broker.topics.topic_policies import default_policies
from pulsar_on_spark.metadata.records import TopicRecord
from pulsar_on_spark.metadata.state import RecentView
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.policies.effective import effective_policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.compaction.compact import Compaction, compact
from pulsar_on_spark.topic.managed_ledger.chain.compaction_record import waiting_bytes

_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class CompactionCounts:
    """The counts of a topic's compactions since this broker's start.

    Attributes:
        succeeded: Number of successful compactions.
        failed: Number of failed compactions.
        duration_ms: Duration of the last compaction in milliseconds, without the wait for its turn.
    """

    succeeded: int = 0
    failed: int = 0
    duration_ms: int = 0


class Compactions(TopicWork):
    """The compactions of one broker. Call all methods in its event loop.

    Args:
        root: The open root.
        settings: The interval of checks of thresholds, and the default policies.
        is_elsewhere: Returns True, by a view, for a topic that another broker serves and therefore compacts.
    """

    def __init__(
        self, root: RootHandle, settings: BrokerSettings, is_elsewhere: Callable[[RecentView, TopicName], bool]
    ) -> None:
        super().__init__("compaction")
        self._is_elsewhere = is_elsewhere
        self._root = root
        self._defaults = default_policies(settings)
        self._interval_s = settings.broker_service_compaction_monitor_interval_in_seconds
        self._retain_null_key = settings.topic_compaction_retain_null_key
        self._counts: dict[TopicName, CompactionCounts] = {}
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic check of thresholds."""
        self._watching = asyncio.create_task(
            every(self._interval_s, self._compact_due, "Compaction thresholds cannot be checked now")
        )

    async def stop(self) -> None:
        """Stop the checks, and terminate a running compaction."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await super().stop()

    def counts(self, topic: TopicName) -> CompactionCounts | None:
        """Return the counts of a topic or partition; None if this broker has not compacted it yet."""
        return self._counts.get(topic)

    def run(self, topic: TopicName, reach: Position | None = None) -> None:
        """Compact a topic or partition in the background.

        Args:
            topic: The topic or partition.
            reach: The known end of the topic's chain: the compaction covers at least the entries before it. None to
                cover the entries that the compaction finds.

        Raises:
            TopicBusyError: a compaction of the topic is running or waits for its turn.
        """
        self.begin(topic, lambda: self._compact(topic, reach))

    async def _compact(self, topic: TopicName, reach: Position | None) -> str | None:
        """Compact a topic in a child process; return the reason of a failure, None after a success."""
        began_s = time.monotonic()
        position = "" if reach is None else str(reach)
        arguments = [str(self._root.place), topic.full, position, str(int(self._retain_null_key))]
        error = await run_module(__name__, *arguments)
        self._count(topic, error is None, time.monotonic() - began_s)
        return error

    def _count(self, topic: TopicName, has_succeeded: bool, duration_s: float) -> None:
        before = self._counts.get(topic, CompactionCounts())
        succeeded, failed = before.succeeded + has_succeeded, before.failed + (not has_succeeded)
        remember(self._counts, topic, CompactionCounts(succeeded, failed, round(duration_s * 1000)))

    # -- thresholds ----------------------------------------------------------------------------------------------------

    async def _compact_due(self) -> None:
        for topic in await asyncio.to_thread(self._due):
            if not self.is_running(topic):
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
    """Compact one topic, as a child process.

    The program's arguments are the root's directory or URL, the topic, the position to reach ("" for none), and 1 to
    keep messages without a key, else 0.
    """
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
