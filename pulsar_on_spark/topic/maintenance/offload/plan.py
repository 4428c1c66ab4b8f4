"""The choice of files to offload, of their cold paths, and of other copies to delete. No IO, no clock.

    file                                            what is done with it
    ----------------------------------------------  ----------------------------------------------------------------
    a topic still needs a part of it hot            nothing
    a compacted ledger is in it                     nothing: the next compaction replaces it
    its topics name different drivers               nothing
    any other that was not offloaded                it gets a copy on a cold path, and is offloaded with that commit
    offloaded, within the deletion lag              its other copies are kept, and are read first
    offloaded longer ago, and its cold copy counts  its other copies are deleted

A file holds segments of any topics. A part of it is needed hot unless it is beyond a threshold of its own topic, or
before the position that a request for this topic names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pulsar_on_spark.metadata.records import CompactionRecord, FileRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.topic.catalog.policies.policies import OffloadPolicies
from pulsar_on_spark.topic.maintenance.repair.plan import FilePlan, plan_file
from pulsar_on_spark.topic.managed_ledger.chain.slices import segment_end

PoliciesOf = Callable[[TopicRecord], OffloadPolicies]
Bad = Mapping[str, Collection[PathId]]
"""Paths on which a file's copy is known to be bad, by file."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The state by which files are chosen.

    Attributes:
        view: The metadata.
        paths: All storage paths, without retired ones.
        bad: The paths on which a copy is known to be bad, by file.
        policies_of: Returns the offload policies in force for a topic.
        now: The current time, by which ages and lags are computed.
        only: The files to consider; None for all.
    """

    view: View
    paths: Mapping[PathId, PathHealth]
    bad: Bad
    policies_of: PoliciesOf
    now: datetime
    only: Collection[str] | None = None

    def concerns(self, file: FileRecord) -> bool:
        """Return True if the file is to be considered."""
        return self.only is None or file.file_id in self.only

    def bad_copies(self, file: FileRecord) -> Collection[PathId]:
        """Return the paths on which the file's copy is known to be bad."""
        return self.bad.get(file.file_id, ())


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """The files to offload.

    Attributes:
        moves: The plans that give each file a copy on a cold path.
        waiting: Number of files that are due but wait, because no writable cold path has their driver's label.
        closed: If files wait, a reason for each cold path that takes no files.
        shared: Number of files that stay although a part of them is due, because another part is needed hot, or because
            their topics name different drivers.
    """

    moves: tuple[FilePlan, ...] = ()
    waiting: int = 0
    closed: tuple[str, ...] = ()
    shared: int = 0


def beyond_thresholds(
    segments: Collection[SegmentRecord], policies: OffloadPolicies, now_ms: int
) -> Iterator[SegmentRecord]:
    """Yield the segments of a topic that are beyond a threshold of its policies, from the newest to the oldest.

    Args:
        segments: The topic's sealed segments, in the order of entries.
        policies: The offload policies in force for the topic.
        now_ms: The current time, by which ages are computed, in milliseconds since 1970.
    """
    limit_bytes, limit_s = policies.threshold_bytes, policies.threshold_s
    size_bytes = 0
    for segment in reversed(tuple(segments)):
        size_bytes += segment.bytes
        is_old = limit_s >= 0 and now_ms - segment.publish_max_ms >= limit_s * 1000
        if is_old or 0 <= limit_bytes < size_bytes:
            yield segment


def plan_offload(basis: Basis, requests: Mapping[str, Position]) -> OffloadPlan:
    """Plan the copies of files on cold paths.

    Args:
        basis: The current state.
        requests: By topic id, the position before which an operator wants all sealed segments offloaded.
    """
    view, now_ms = basis.view, int(basis.now.timestamp() * 1000)
    beyond: set[str] = set()
    drivers: dict[str, str] = {}
    for topic in view.all(TopicRecord):
        segments, policies = view.all(SegmentRecord, topic.topic_id), basis.policies_of(topic)
        drivers[topic.topic_id] = policies.driver
        before = requests.get(topic.topic_id)
        beyond.update(segment.record_id for segment in beyond_thresholds(segments, policies, now_ms))
        beyond.update(each.record_id for each in segments if before is not None and end_of(each) <= before)
    moves: list[FilePlan] = []
    waiting = shared = 0
    for file, named_by in _hot_files(view):
        if not basis.concerns(file):
            continue
        due = [segment for segment in named_by if segment.record_id in beyond]
        labels = {drivers[segment.topic_id] for segment in due} - {""}
        if len(due) < len(named_by) or len(labels) > 1:
            shared += bool(due)
            continue
        move = plan_file(file.as_cold(basis.now), 1, basis.paths, basis.bad_copies(file), labels)
        if any(basis.paths[target].is_cold for target in move.targets):
            moves.append(move)
        else:
            waiting += 1
    return OffloadPlan(tuple(moves), waiting, _closed(basis.paths.values()) if waiting else (), shared)


def plan_release(basis: Basis) -> list[FilePlan]:
    """Return a plan for each offloaded file whose copies on paths that are not cold are to be deleted.

    The deletion lag of a file is the longest lag of its topics. No copy of a stranded file is deleted (`repair.plan`).
    The caller verifies that the copies in `counted` exist.
    """
    lags: dict[str, timedelta] = {}
    for topic in basis.view.all(TopicRecord):
        lag = timedelta(milliseconds=basis.policies_of(topic).deletion_lag_ms)
        for segment in basis.view.all(SegmentRecord, topic.topic_id):
            lags[segment.file_id] = max(lag, lags.get(segment.file_id, lag))
    plans = []
    for file in basis.view.all(FileRecord):
        if file.offloaded_at is None or file.replaced_at is not None or file.file_id not in lags:
            continue
        if not basis.concerns(file):
            continue
        plan = plan_file(file, 1, basis.paths, basis.bad_copies(file))
        has_cold = any(basis.paths[path_id].is_cold for path_id in plan.counted)
        others = [path_id for path_id in plan.beside if path_id not in plan.leaving]
        if has_cold and others and basis.now - file.offloaded_at >= lags[file.file_id]:
            plans.append(replace(plan, targets=(), leaving=(*plan.leaving, *others)))
    return plans


def end_of(segment: SegmentRecord) -> Position:
    """Return the position after a segment."""
    return Position(LedgerId(segment.ledger_id), EntryId(segment_end(segment)))


def _closed(paths: Iterable[PathHealth]) -> tuple[str, ...]:
    """Return, for each cold path that takes no files, the reason."""
    closed = [path for path in paths if path.is_cold and not path.is_writable]
    return tuple(f"[path {path.path_id}] {path.reason or f'It is {path.state}.'}" for path in closed)


def _hot_files(view: View) -> Iterator[tuple[FileRecord, list[SegmentRecord]]]:
    """Yield the files in use that were not offloaded and hold no compacted ledger, each with the segments in it."""
    named_by: dict[str, list[SegmentRecord]] = defaultdict(list)
    for segment in view.all(SegmentRecord):
        named_by[segment.file_id].append(segment)
    for record in view.all(CompactionRecord):
        for compacted in record.files:
            named_by.pop(compacted.file_id, None)
    for file in view.all(FileRecord):
        if not file.is_cold and file.replaced_at is None and file.file_id in named_by:
            yield file, named_by[file.file_id]
