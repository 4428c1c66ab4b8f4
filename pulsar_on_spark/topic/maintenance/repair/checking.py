"""Checking all copies by reading them in full, without repairs. For operators; large roots can be read in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.topic.catalog.progress import Progress, silent
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.audit import MISSING, Audit, audit, live
from pulsar_on_spark.topic.maintenance.repair.limits import RepairLimits
from pulsar_on_spark.topic.maintenance.repair.scrub import check_copy


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The problems that were found with copies.

    Attributes:
        good: Number of copies that were read in full and are good; a copy that was moved meanwhile does not count.
        missing: Number of copies that the metadata name and that do not exist.
        bad: Number of copies that exist and are bad; a copy that could not be examined does not count.
        lacking: Number of copies that files need but no storage path can take.
        reasons: A sentence for each copy that is bad, missing or could not be examined, and each unreachable path.
    """

    good: int
    missing: int
    bad: int
    lacking: int
    reasons: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if every copy exists and is good."""
        return not (self.missing or self.bad or self.lacking or self.reasons)


def check(root: RootHandle, path_id: PathId | None = None, *, progress: Progress = silent) -> CheckReport:
    """Read every copy in full, or every copy on one path. Report bad copies for repair, but mark no path as failed.

    Args:
        root: The root.
        path_id: The only storage path to check; None for all.
        progress: Called as the check proceeds.

    Raises:
        InvalidArgumentError: there is no such path.
        MetadataError: the metadata cannot be read or written.
        StorageError: a report cannot be cleared.
    """
    audited = audit(root, RepairLimits(), marks=False)
    paths = root.storage_paths(audited.view)
    if path_id is not None and path_id not in paths:
        raise InvalidArgumentError(f"There is no storage path {path_id}: give one that `pulsarpy storage list` shows.")
    copies = to_read(audited, path_id)
    defects: list[str] = []
    unexamined: list[str] = []
    good = 0
    for number, (file, at) in enumerate(copies):
        progress("check", number, len(copies))
        checked = check_copy(root, file, paths[at])
        good += checked.is_good
        if checked.defect is not None:
            (defects if checked.is_examined else unexamined).append(checked.defect)
    progress("check", len(copies), len(copies))
    return report_of(audited, root.quorum.write, good, defects, unexamined, path_id)


def report_of(
    found: Audit,
    wanted: int,
    good: int,
    defects: Sequence[str],
    unexamined: Sequence[str] = (),
    path_id: PathId | None = None,
) -> CheckReport:
    """Make the report from the findings of an audit and the results of reading.

    Args:
        found: The audit.
        wanted: The root's write quorum.
        good: The number of copies that were read and are good.
        defects: The defect of each bad copy.
        unexamined: The reason why a copy could not be examined, for each such copy.
        path_id: The only storage path that was checked; None for all.
    """
    absent = {copy_key: reason for copy_key, reason in found.bad.items() if path_id in (None, copy_key[1])}
    missing = sum(reason == MISSING for reason in absent.values())
    sentences = [f"File {file_id}, storage path {at}: {reason}." for (file_id, at), reason in absent.items()]
    away = [reason for at, reason in found.problems.items() if path_id in (None, at)]
    return CheckReport(
        good=good,
        missing=missing,
        bad=len(defects) + len(absent) - missing,
        lacking=sum(plan.lacking for plan in found.plans(wanted)),
        reasons=(*away, *sentences, *defects, *unexamined),
    )


def to_read(found: Audit, path_id: PathId | None = None) -> list[tuple[FileRecord, PathId]]:
    """Return the copies that exist by the audit, as (file, path) in the order of paths.

    These are the copies on `path_id`, or on all paths for None.
    """
    return [
        (file, at)
        for at in sorted(found.paths)
        if found.paths[at].is_judged and path_id in (None, at)
        for file in live(found.view)
        if at in file.copies and (FileId(file.file_id), at) not in found.bad
    ]
