"""Reports of bad copies and losses: small files under the root that readers leave for status, audit and repair.

A reading task must not commit metadata, so what it finds goes into one JSON file a finding. The name says which
copy of which file it is about: a repeat overwrites, a thousand tasks that meet one bad copy leave one report.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pulsar_on_spark.ledger.files import OS_FILES, FileOps, make_directory, read_file, write_file
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import FileId, PathId

MAX_REPORTS = 1000
"""Above so many, new findings are dropped: the first ones are enough to start a repair."""

_DIRECTORY = "reports"
_NAME = re.compile(r"(?P<kind>bad-copy|loss)\.(?P<file_id>[0-9A-Za-z_-]+)\.(?P<path_id>\d+|all)\.json")
_log = logging.getLogger(__name__)


class ReportKind(StrEnum):
    """What was found."""

    BAD_COPY = "bad-copy"
    """One copy is missing or damaged, others may be good."""
    LOSS = "loss"
    """No copy was good."""


@dataclass(frozen=True, slots=True)
class Report:
    """A finding. `path_id` is None for a loss, which is about all copies; `found_at_ms` is the finder's clock."""

    kind: ReportKind
    file_id: FileId
    path_id: PathId | None
    reason: str
    found_at_ms: int

    @property
    def file_name(self) -> str:
        """The name of the report's file: the same for the same kind, file and path."""
        return f"{self.kind}.{self.file_id}.{'all' if self.path_id is None else self.path_id}.json"


def write_report(root: Path, report: Report, files: FileOps = OS_FILES) -> bool:
    """Leave a report under the root; returns whether it was kept.

    It is dropped, with a warning in the log, when there are `MAX_REPORTS` others or the root cannot be written:
    reading goes on without it.
    """
    directory = root / _DIRECTORY
    content = json.dumps({"format_version": 1, "reason": report.reason, "found_at_ms": report.found_at_ms})
    try:
        make_directory(files, directory)
        others = set(os.listdir(directory)) - {report.file_name}
        if len(others) >= MAX_REPORTS:
            _log.warning("Dropped a report, there are %d in %s: %s", len(others), directory, report)
            return False
        write_file(files, directory / report.file_name, content.encode())
    except OSError as error:
        _log.warning("Dropped a report, %s cannot be written (%s): %s", directory, error, report)
        return False
    return True


def read_reports(root: Path, files: FileOps = OS_FILES) -> list[Report]:
    """The reports under the root, by name. One whose content is damaged is given with what its name says.

    Raises:
        StorageError: the directory cannot be read.
    """
    directory = root / _DIRECTORY
    reports = []
    try:
        for name in sorted(os.listdir(directory)) if directory.is_dir() else ():
            if match := _NAME.fullmatch(name):
                with suppress(FileNotFoundError):
                    reports.append(_parse(match, read_file(files, directory / name)))
    except OSError as error:
        raise StorageError(f"Reports in {directory} cannot be read ({error}): check the root's disk.") from error
    return reports


def clear_report(root: Path, report: Report, files: FileOps = OS_FILES) -> None:
    """Remove a report whose finding was dealt with; harmless if it is gone.

    Raises:
        StorageError: the report's file cannot be removed.
    """
    path = root / _DIRECTORY / report.file_name
    try:
        with suppress(FileNotFoundError):
            files.unlink(path)
    except OSError as error:
        raise StorageError(f"Report {path} cannot be removed ({error}): check the root's disk.") from error


def _parse(name: re.Match[str], content: bytes) -> Report:
    try:
        fields = json.loads(content)
        reason, found_at_ms = str(fields["reason"]), int(fields["found_at_ms"])
    except (ValueError, KeyError, TypeError):
        reason, found_at_ms = "the report's content is damaged", 0
    path_id = None if name["path_id"] == "all" else PathId(int(name["path_id"]))
    return Report(ReportKind(name["kind"]), FileId(name["file_id"]), path_id, reason, found_at_ms)
