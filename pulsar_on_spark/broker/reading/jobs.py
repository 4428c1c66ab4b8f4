"""Jobs of the reading process and their outcomes: plain values that are sent through a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from pulsar_on_spark.broker.reading.slabs import Run
from pulsar_on_spark.metadata.records import CompactionRecord
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange


class Lane(Enum):
    """A group of threads of the reading process, named after the entries that it reads.

    A slow lane does not block the others. A `FillJob` begins in SEALED, and a `FindJob` in JOURNALS.
    """

    SEALED = "segments on the disks or stores that the root writes to: reads wait for nothing else"
    COLD = "segments of which only cold paths have a good copy: the path may be slow, or unreachable for minutes"
    JOURNALS = "journals: reads may wait for the recovery of a dead broker"


class InLaneError(Exception):
    """The read has reached an entry that only another lane can read.

    Attributes:
        lane: The other lane.
        start: The position that a search has reached; None for other reads.
    """

    def __init__(self, lane: Lane, start: Position | None = None) -> None:
        super().__init__(lane, start)
        self.lane, self.start = lane, start


@dataclass(frozen=True, slots=True)
class EntrySource:
    """The source of entries: a topic's log, or a compacted ledger, whose entries have the same ids but other bytes.

    Attributes:
        part: The topic.
        compaction: The record of the compacted ledger; None for the log.
    """

    part: TopicPart
    compaction: CompactionRecord | None = None

    @property
    def id(self) -> str:
        """The unique id of the source: the topic's id, or the compaction's."""
        return self.part.topic_id if self.compaction is None else self.compaction.compaction_id


class FillJob(NamedTuple):
    """A job to read the ranges, and following entries up to `ahead_bytes`, into a slab.

    Attributes:
        number: The number of the job.
        source: The source of the entries.
        ranges: The entries to read, in order.
        slab: The number of the slab.
        ahead_bytes: Bytes of entries after which the read may end.
        lane: The lane that runs the job.
    """

    number: int
    source: EntrySource
    ranges: tuple[EntryRange, ...]
    slab: int
    ahead_bytes: int
    lane: Lane = Lane.SEALED


class FindJob(NamedTuple):
    """A job to find the first entry of [start, end) that was published at `publish_ms` (ms since 1970) or later.

    Attributes:
        number: The number of the job.
        source: The source of the entries.
        start: The position of the first entry to consider.
        end: The position after the last entry to consider.
        publish_ms: The publish time, in milliseconds since 1970.
        lane: The lane that runs the job.
    """

    number: int
    source: EntrySource
    start: Position
    end: Position
    publish_ms: int
    lane: Lane = Lane.JOURNALS


class Filled(NamedTuple):
    """The outcome of a `FillJob`: the entries that were read into the slab.

    Attributes:
        number: The number of the job.
        runs: The entries, in the order in which the slab contains them.
        next: Ledger and id of the entry after them; None if it is unknown.
        ack_sets: `StoredEntry.ack_set` of compacted entries, by ledger and entry.
    """

    number: int
    runs: tuple[Run, ...]
    next: tuple[int, int] | None
    ack_sets: Mapping[tuple[int, int], int] = {}


class Large(NamedTuple):
    """The outcome of a `FillJob` whose first entry is larger than a slab; the entry's bytes follow in the pipe.

    Attributes:
        number: The number of the job.
        run: The entry.
        ack_set: `StoredEntry.ack_set` of the entry.
    """

    number: int
    run: Run
    ack_set: int = 0


class FoundAt(NamedTuple):
    """The outcome of a `FindJob`: the position of the entry, or the job's `end` if there is none."""

    number: int
    position: Position


class Deferred(NamedTuple):
    """The outcome of a job that must continue in another lane (see `InLaneError`).

    Attributes:
        number: The number of the job.
        lane: The other lane.
        start: The position at which a `FindJob` continues; None for a `FillJob`.
    """

    number: int
    lane: Lane
    start: Position | None


class Failed(NamedTuple):
    """The outcome of a job that failed, with the number of the job and its error."""

    number: int
    error: PulsarpyError


Job: TypeAlias = FillJob | FindJob
Outcome: TypeAlias = Filled | Large | FoundAt | Deferred | Failed
