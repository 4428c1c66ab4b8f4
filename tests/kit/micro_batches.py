"""Spark's micro-batch loop without Spark: drives a stream reader as Spark 4.2.0 calls it, and can end at any point.

Interleavings of several queries are cheap to test so. What Spark keeps in a checkpoint is in `Checkpoint`, as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_on_spark.datasource.source import PulsarDataSource
from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader

Row = dict[str, object]


class Point(Enum):
    """A point in a micro-batch at which a process may end."""

    LOGGED = "the end offset is in the offset log"
    PLANNED = "the tasks are planned"
    WRITTEN = "the sink has the batch, and the commit log does not"


@dataclass
class Checkpoint:
    """The offset log, the number of commits, and what the sink holds of each batch: all that outlives a process."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[Row]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """All rows in the sink, batch by batch."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    @property
    def values(self) -> list[object]:
        """The payloads in the sink, batch by batch."""
        return [row["value"] for row in self.rows]


class MicroBatchQuery:
    """A run of a streaming query: a process, as far as the checkpoint and the subscription can tell.

    Args:
        root: The root's folder or URL.
        checkpoint: Of an earlier run, or a fresh one.
        available_now: With Trigger.AvailableNow.
        once: With Trigger.Once, which ignores limits.
        options: The reader's options, as Spark hands them over.
    """

    def __init__(
        self,
        root: str | Path,
        checkpoint: Checkpoint,
        options: Mapping[str, str],
        *,
        available_now: bool = False,
        once: bool = False,
    ) -> None:
        source = PulsarDataSource({name.lower(): value for name, value in {"path": str(root), **options}.items()})
        self.checkpoint = checkpoint
        reader = source.streamReader(source.schema())
        assert isinstance(reader, PulsarStreamReader), "the options are refused"
        self.reader = reader
        _started.append(self)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._limit = ReadAllAvailable() if once else self.reader.getDefaultReadLimit()
        self._idle = False

    def run(self, stop_at: Point | None = None) -> bool:
        """Ask the source once, and run a micro-batch if there is something new (first the one that was cut off).

        As in Spark a query's very first batch runs even if there is nothing new.

        Args:
            stop_at: End there, as a killed process does: call nothing of this query afterwards but `kill`.

        Returns:
            Whether there was something new.
        """
        kept = self.checkpoint
        number = kept.commits
        if len(kept.offsets) > number:
            self._idle = False
        else:
            start = kept.offsets[-1] if kept.offsets else _text(self.reader.initialOffset())
            end = _text(self.reader.latestOffset(json.loads(start), self._limit))
            self.reader.reportLatestOffset()
            self._idle = end == start
            if self._idle and number:
                return False
            kept.offsets.append(end)  # batch 0 runs even if it is empty
            if number:
                self.reader.commit(json.loads(start))
        if stop_at is Point.LOGGED:
            return True
        # Spark does not keep the start of batch 0: after a restart it passes a fresh initial offset.
        start = kept.offsets[number - 1] if number else _text(self.reader.initialOffset())
        partitions = self.reader.partitions(json.loads(start), json.loads(kept.offsets[number]))
        if stop_at is Point.PLANNED:
            return True
        kept.sink[number] = [
            row for partition in partitions for batch in self.reader.read(partition) for row in batch.to_pylist()
        ]
        if stop_at is Point.WRITTEN:
            return True
        kept.commits += 1
        return not self._idle

    def run_all(self, most: int = 1_000) -> int:
        """Micro-batches until there is nothing new; returns how many.

        Raises:
            AssertionError: there is still something new after `most` batches.
        """
        for batches in range(most):
            if not self.run():
                return batches
        raise AssertionError(f"still something new after {most} batches")

    def stop(self) -> None:
        """End as `query.stop()` does."""
        self.reader.stop()

    def kill(self) -> None:
        """End as SIGKILL does: nothing is given back, and the lease is renewed no more."""
        subscription = self.reader._subscription
        if subscription is not None:
            subscription._consumer._keeper._stopping.set()


_started: list[MicroBatchQuery] = []


def kill_all() -> None:
    """Kill the queries that a test has left running: their threads would renew leases until the process ends."""
    while _started:
        _started.pop().kill()


def _text(offset: object) -> str:
    """As Spark's runner writes it: offsets are compared by their text."""
    return json.dumps(offset)
