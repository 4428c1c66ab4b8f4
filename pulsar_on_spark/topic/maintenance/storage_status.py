"""Numbers about storage paths and copies, for `pulsarpy status`, the admin API and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import DurableView, View
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.storage.reports import Finding, ReportKind, read_reports, sum_losses
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.holds import examine_paths
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.scrub import AuditState, read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class PathNumbers(PathHealth):
    """A storage path that is not retired, with its health and its contents.

    Attributes:
        uri: The path's directory, as in the metadata.
        directory: The path's directory in the file system, or its URL.
        copies: Number of files that should have a copy on the path.
        bytes: Bytes of these copies.
        bad_copies: Number of copies on the path that readers, or a verification, found bad or missing.
    """

    uri: str
    directory: RootPlace
    copies: int
    bytes: int
    bad_copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyNumbers:
    """Storage paths and copies of a root at one version of its metadata.

    Attributes:
        paths: The storage paths.
        missing_copies: Number of copies that live files need in addition to have their write quorums. Copies on
            unreachable paths (which have a `reason`), on lost paths and on draining paths count as missing.
        unchecked_copies: Number of copies on paths that came back and were not read in full yet. For repair, these
            copies do not count until then.
        bad_copies: Reports of bad or missing copies of live files, which have another good copy.
        losses: Messages in live files that no copy has: for each file and topic, one report with their sum.
        audit: Findings of the last audit, the repairs after it, and the progress of the scrub of each path.
    """

    paths: tuple[PathNumbers, ...] = ()
    missing_copies: int = 0
    unchecked_copies: int = 0
    bad_copies: tuple[Finding, ...] = ()
    losses: tuple[Finding, ...] = ()
    audit: AuditState = field(default_factory=AuditState)


def copy_numbers(root: RootHandle, view: DurableView, files: Mapping[str, FileRecord]) -> CopyNumbers:
    """Return the numbers from an examination of the storage paths and from readers' reports; block while a disk hangs.

    Args:
        root: The root.
        view: The root's metadata.
        files: The live files in the view.

    Raises:
        StorageError: the reports cannot be read.
        MetadataError: the metadata cannot be read.
    """
    reports = [report for report in read_reports(root.place) if report.file_id in files]
    bad = tuple(each for each in reports if _is_bad_copy(files[each.file_id], each))
    paths = _paths(root, view, files, Counter(report.path_id for report in bad))
    holding = {path.path_id for path in paths if path.holds_copies}
    return CopyNumbers(
        paths=paths,
        missing_copies=sum(file.missing_copies(root.quorum.write, holding) for file in files.values()),
        unchecked_copies=sum(path.copies for path in paths if not path.is_checked),
        bad_copies=bad,
        losses=tuple(sum_losses(reports)),
        audit=read_state(root.place),
    )


def _is_bad_copy(file: FileRecord, report: Finding) -> bool:
    """Return True if the report concerns a copy that the file's record names."""
    return report.kind is ReportKind.BAD_COPY and report.path_id in file.copies


def _paths(
    root: RootHandle, view: View, files: Mapping[str, FileRecord], bad: Mapping[PathId | None, int]
) -> tuple[PathNumbers, ...]:
    copies: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for file in files.values():
        for path_id in file.copies:
            copies[path_id] += 1
            sizes[path_id] += file.length + file.sidecar_length
    healths = examine_paths(root, view)
    directories = root.storage_paths(view)
    return tuple(
        PathNumbers(
            **{field_.name: getattr(health, field_.name) for field_ in fields(health)},
            uri=record.uri,
            directory=directories[health.path_id].place,
            copies=copies[health.path_id],
            bytes=sizes[health.path_id],
            bad_copies=bad[health.path_id],
        )
        for record in view.all(PathRecord)
        if (health := healths.get(PathId(record.path_id))) is not None
    )
