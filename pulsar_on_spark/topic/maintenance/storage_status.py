"""The numbers of storage paths: one look at them, under `pulsarpy status`, the admin API and metrics alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.storage.health import PathHealth
from pulsar_on_spark.storage.reports import Finding, ReportKind
from pulsar_on_spark.topic.catalog.root_handle import RootHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class PathNumbers(PathHealth):
    """A storage path with its health and its content. Retired ones have none.

    Attributes:
        uri: Its place, as in the metadata.
        directory: Its place in the file system.
        copies: Files of which it should hold a copy.
        bytes: Bytes of these copies.
        bad_copies: Copies on it that readers, or a verification, found bad or missing.
    """

    uri: str
    directory: Path
    copies: int
    bytes: int
    bad_copies: int


def path_numbers(
    root: RootHandle, view: View, files: Mapping[str, FileRecord], bad: Iterable[Finding]
) -> tuple[PathNumbers, ...]:
    """Examine all storage paths; a disk that hangs blocks.

    Args:
        root: The root.
        view: Its metadata.
        files: The live files.
        bad: The reports of their bad copies.
    """
    copies: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for file in files.values():
        for path_id in file.copies:
            copies[path_id] += 1
            sizes[path_id] += file.length + file.sidecar_length
    bad_by_path = Counter(report.path_id for report in bad)
    healths = root.examine_paths(view)
    directories = root.storage_paths(view)
    return tuple(
        PathNumbers(
            **{each.name: getattr(health, each.name) for each in fields(health)},
            uri=record.uri,
            directory=directories[health.path_id].directory,
            copies=copies[health.path_id],
            bytes=sizes[health.path_id],
            bad_copies=bad_by_path[health.path_id],
        )
        for record in view.all(PathRecord)
        if (health := healths.get(PathId(record.path_id))) is not None
    )


def missing_copies(root: RootHandle, files: Mapping[str, FileRecord], paths: Iterable[PathHealth]) -> int:
    """The number of copies that files lack, those on paths that are away, lost or draining included."""
    holding = {path.path_id for path in paths if path.holds_copies}
    return sum(file.missing_copies(root.quorum.write, holding) for file in files.values())


def bad_copies(files: Mapping[str, FileRecord], reports: Iterable[Finding]) -> tuple[Finding, ...]:
    """The reports of copies that records of live files name."""
    return tuple(
        report
        for report in reports
        if report.kind is ReportKind.BAD_COPY
        and report.file_id in files
        and report.path_id in files[report.file_id].copies
    )
