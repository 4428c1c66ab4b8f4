"""Housekeeping of a root: one pass of all maintenance steps. Several passes may run at the same time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import APART
from pulsar_on_spark.storage.probe import Trials
from pulsar_on_spark.topic.catalog.holds import unheld_paths
from pulsar_on_spark.topic.catalog.policies.effective import DEFAULTS
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.files.collect import DEFAULT_AGES, Ages, CollectReport, collect
from pulsar_on_spark.topic.maintenance.files.merge import MergeReport, merge
from pulsar_on_spark.topic.maintenance.offload.offloading import OffloadReport, offload
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER, RepairLimits
from pulsar_on_spark.topic.maintenance.repair.repairing import RepairReport, repair
from pulsar_on_spark.topic.maintenance.retention.expiry import expire_subscriptions, sweep_leases
from pulsar_on_spark.topic.maintenance.retention.trim import TrimmedTopics, trim_topics
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import ClosedJournals, seal_closed

T = TypeVar("T")
log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 30.0
"""Maximum time in seconds that a pass waits for the trial write to a storage path."""


@dataclass(frozen=True, slots=True)
class MaintainReport:
    """The result of one pass of `maintain`.

    Attributes:
        healed_paths: Ids of storage paths that had failed and are writable again.
        journals: The work on closed journals: sealed entries, deleted files and removed journals.
        repair: The result of `repair`: missing, bad and restored copies.
        trimmed: Number and size of the segments that retention trimmed.
        merge: The result of `merge`.
        offload: The result of `offload`.
        collect: The result of `collect`.
        expired_subscriptions: Number of subscriptions that were deleted because they had no consumers for too long.
        folded: True if superseded metadata rows were removed.
        vacuumed_files: Number of metadata files that were deleted.
        swept_leases: Number of old lease files that were deleted.
        problems: A sentence for each step that failed, and for each closed journal that could not be sealed or trimmed.
            All other work of the pass was done.
    """

    healed_paths: tuple[PathId, ...] = ()
    journals: ClosedJournals = field(default_factory=ClosedJournals)
    repair: RepairReport = field(default_factory=RepairReport)
    trimmed: TrimmedTopics = field(default_factory=TrimmedTopics)
    merge: MergeReport = field(default_factory=MergeReport)
    offload: OffloadReport = field(default_factory=OffloadReport)
    collect: CollectReport = field(default_factory=CollectReport)
    expired_subscriptions: int = 0
    folded: bool = False
    vacuumed_files: int = 0
    swept_leases: int = 0
    problems: tuple[str, ...] = ()


def maintain(
    root: RootHandle,
    ages: Ages = DEFAULT_AGES,
    progress: Progress = silent,
    repair_limits: RepairLimits = BESIDE_A_BROKER,
    defaults: Policies = DEFAULTS,
) -> MaintainReport:
    """Run all maintenance steps of a root once, and return their results.

    If a step fails, the report names the step in `problems`, and the later steps still run.

    The steps are: probe failed storage paths, seal closed journals, repair copies, trim topics, merge small segments,
    offload segments beyond their topics' thresholds, delete unused subscriptions and files, fold and checkpoint the
    metadata, delete old metadata files, and delete old leases.

    Args:
        root: The root.
        ages: Minimum ages of files that are collected.
        progress: Called at the beginning and the end of each step.
        repair_limits: Limits of the speed of repair and of offloading.
        defaults: The policies for fields that neither a topic nor its namespace sets.
    """
    problems: list[str] = []

    def step(name: str, work: Callable[[], T], otherwise: T) -> T:
        progress(name, 0, 1)
        try:
            done = work()
        except (PulsarpyError, OSError) as error:
            log.warning("Step %r of maintain failed: %s", name, error)
            problems.append(f"{name}: {error}")
            return otherwise
        progress(name, 1, 1)
        return done

    return MaintainReport(
        healed_paths=step("probe storage paths", lambda: heal_paths(root), ()),
        journals=step("seal closed journals", lambda: seal_closed(root, problems.append), ClosedJournals()),
        repair=step("repair", lambda: repair(root, repair_limits, progress), RepairReport()),
        trimmed=step("trim topics", lambda: trim_topics(root, defaults, progress), TrimmedTopics()),
        merge=step("merge", lambda: merge(root, progress), MergeReport()),
        # After merges, so that few large files move.
        offload=step("offload", lambda: _offload(root, defaults, repair_limits, progress), OffloadReport()),
        expired_subscriptions=step("expire subscriptions", lambda: expire_subscriptions(root), 0),
        collect=step("collect", lambda: collect(root, ages, progress), CollectReport()),
        folded=step("fold and checkpoint", root.store.fold_and_checkpoint, False),
        vacuumed_files=step("vacuum", root.store.vacuum, 0),
        swept_leases=step("sweep leases", lambda: sweep_leases(root), 0),
        problems=tuple(problems),
    )


def heal_paths(
    root: RootHandle, told: dict[int, str] | None = None, trials: Trials | None = None
) -> tuple[PathId, ...]:
    """Make failed storage paths that are healthy now writable again, and return their ids.

    Args:
        root: The root.
        told: The problems, by path id, that earlier calls logged and that this call does not log again. This call
            updates the mapping. None to log all problems.
        trials: The record of earlier trials, if the caller calls periodically: a path whose pause after a trial is not
            over is not tried. None to try all failed paths.

    Raises:
        MetadataError: the metadata cannot be read or written.
    """
    view = root.store.view()
    paths = root.storage_paths(view)
    trials = trials or Trials(wait_s=_ANSWER_WITHIN_S)
    all_failed = [record for record in view.all(PathRecord) if _has_failed(record)]
    failed = [record for record in all_failed if trials.may_try(PathId(record.path_id))]
    records = [trials.try_out(paths[PathId(record.path_id)], record.reason) for record in failed]
    ills: dict[int, str] = {health.path_id: health.reason for health in records if not health.is_well}
    unheld = unheld_paths(root, view, [health.path_id for health in records if health.is_well])
    ills.update((path_id, each.reason) for path_id, each in unheld.items())
    for path_id, ill in ills.items():
        if told is None or told.get(path_id) != ill:
            log.warning("Storage path %d still fails: %s", path_id, ill, extra={"path": path_id})
    tried = {record.path_id for record in failed}
    if told is not None:
        paused = {record.path_id for record in all_failed} - tried
        ills |= {path_id: ill for path_id, ill in told.items() if path_id in paused}
        told.clear()
        told.update(ills)
    well = tried - ills.keys()
    for path_id in (*well, *unheld):  # the path of another root seems well, and a trial writes to it
        trials.record_trial(PathId(path_id))
    healed: list[PathRecord] = []
    now = datetime.now(UTC)

    def decide(view: View) -> Change | None:
        nonlocal healed
        records = [record for record in view.all(PathRecord) if _has_failed(record) and record.path_id in well]
        healed = [_healed(record, now) for record in records]
        return Change(puts=healed, keys={keys.path(r.path_id): None for r in healed}) if healed else None

    if well:
        root.store.commit(decide)
    return tuple(PathId(record.path_id) for record in healed)


def _offload(root: RootHandle, defaults: Policies, limits: RepairLimits, progress: Progress) -> OffloadReport:
    done = offload(root, None, defaults, limits, progress)
    for problem in done.problems:
        log.warning("Not everything that is due is offloaded: %s", problem)
    return done


def _healed(record: PathRecord, now: datetime) -> PathRecord:
    """Return the record of a path that is healthy again.

    A path that could not be reached may return with fewer files, so its copies count only after repair has read them.
    Copies on a cold path count at once: reading all of them could take days, and there are no other copies to use
    meanwhile. A history path has no copies.
    """
    since = record.check_since if record.role in APART else now
    return record.model_copy(update={"state": "writable", "reason": "", "failed_at": None, "check_since": since})


def _has_failed(record: PathRecord) -> bool:
    """Return True if a failed write or a failed audit, not an operator, made the path read-only."""
    return record.state == "read-only" and bool(record.reason)
