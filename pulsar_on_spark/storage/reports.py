"""Reports of bad copies and losses: small objects of the root that readers leave for status, audit and repair.

A reading task must not commit metadata, so it writes one JSON object for each finding. The object's key identifies the
bad copy or the lost batches, so a repeated report overwrites the first: a thousand tasks that meet one bad copy leave
one report. Losses that several tasks found may overlap; `sum_losses` counts each batch once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.objects.contract import Exists
from pulsar_on_spark.storage.root_place import RootPlace, objects_at

MAX_REPORTS = 1000
"""Maximum number of reports. Further findings are dropped, because the first findings suffice to start a repair."""

REPORTS = "reports"
"""The prefix of the reports' keys under the root."""
_NAME = re.compile(
    r"(?P<kind>bad-copy|loss)\.(?P<file_id>[0-9A-Za-z_-]+)\."
    r"(?:all|(?P<path_id>\d+)|(?P<first>\d{1,6})-(?P<end>\d{1,6})(?:\.[0-9a-f]{16})?)\.json"
)
_log = logging.getLogger(__name__)


class ReportKind(StrEnum):
    """Kind of a finding."""

    BAD_COPY = "bad-copy"
    """A copy is missing or damaged; other copies may be good."""
    LOSS = "loss"
    """No copy was good."""


@dataclass(frozen=True, slots=True)
class LostBatches:
    """Adjacent record batches of a file that no copy can provide, and one topic's messages in them.

    Attributes:
        topic: The topic's full name.
        first: Number of the first batch in the file.
        rows: Number of the topic's messages in each batch.
    """

    topic: str
    first: int
    rows: tuple[int, ...]

    @property
    def end(self) -> int:
        """Number of the batch after the last one."""
        return self.first + len(self.rows)


@dataclass(frozen=True, slots=True)
class Finding:
    """A bad copy or a loss that a reader found.

    Attributes:
        kind: Bad copy or loss.
        file_id: The file.
        path_id: The storage path of the copy; None for a loss, which concerns all copies.
        reason: The reason, in words.
        found_at_ms: The time on the reader's clock, in milliseconds since 1970.
        lost: The lost batches; None if they are unknown.
        read_from: The key of the report that was read; None for a new finding.
    """

    kind: ReportKind
    file_id: FileId
    path_id: PathId | None
    reason: str
    found_at_ms: int
    lost: LostBatches | None = None
    read_from: str | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The report's key, made of kind, file, and path or batches with a hash of the topic's name."""
        if self.read_from is not None:
            return self.read_from
        what = "all" if self.path_id is None else str(self.path_id)
        if self.lost is not None:
            topic = hashlib.blake2b(self.lost.topic.encode(), digest_size=8).hexdigest()
            what = f"{self.lost.first}-{self.lost.end}.{topic}"
        return f"{REPORTS}/{self.kind}.{self.file_id}.{what}.json"


def write_report(root: RootPlace, report: Finding) -> bool:
    """Write a report under the root; returns False if it was dropped.

    A report is dropped, with a warning in the log, if there are `MAX_REPORTS` others or the root cannot be written.
    Reading continues in any case.
    """
    fields: dict[str, object] = {"format_version": 1, "reason": report.reason, "found_at_ms": report.found_at_ms}
    if report.lost is not None:
        fields |= {"topic": report.lost.topic, "rows": report.lost.rows}
    content = json.dumps(fields).encode()
    objects = objects_at(root)
    try:
        others = {listed.key for listed in objects.list_after(REPORTS)} - {report.key}
        if len(others) >= MAX_REPORTS:
            _log.warning("Dropped a report, because there are already %d in %s: %s", len(others), root, report)
            return False
        written = objects.create(report.key, content)
        if isinstance(written, Exists):
            objects.replace(report.key, content, written.version)
    except StorageError as error:
        _log.warning("Dropped a report, because %s cannot be written (%s): %s", root, error, report)
        return False
    return True


def report_bad_copy(root: RootPlace, file_id: str, path_id: PathId, reason: str) -> None:
    """Log that a copy is bad, missing or unreachable, and write a report of it (see `write_report`)."""
    _log.warning(
        "Copy of file %s on storage path %d cannot be used: %s",
        file_id,
        path_id,
        reason,
        extra={"file": file_id, "path": path_id},
    )
    write_report(root, Finding(ReportKind.BAD_COPY, FileId(file_id), path_id, reason, current_ms()))


def read_reports(root: RootPlace) -> list[Finding]:
    """Return the reports under the root, sorted by key; a report with damaged content is made from its key alone.

    Raises:
        StorageError: the reports cannot be read.
    """
    objects = objects_at(root)
    reports = []
    for listed in objects.list_after(REPORTS):
        match = _NAME.fullmatch(listed.key.removeprefix(f"{REPORTS}/"))
        fetched = None if match is None else objects.fetch(listed.key)
        if match is not None and fetched is not None:
            reports.append(_parse(match, fetched.content))
    return reports


def sum_losses(reports: Iterable[Finding]) -> list[Finding]:
    """Return one loss for each file and topic, whose reason begins with the number of lost messages.

    A batch in several reports counts once. Losses that name no batch are returned unchanged, after all others.
    """
    rows: dict[tuple[FileId, str], dict[int, int]] = defaultdict(dict)
    first_reports: dict[tuple[FileId, str], Finding] = {}
    unknown = []
    for report in reports:
        if report.kind is not ReportKind.LOSS:
            continue
        if report.lost is None:
            unknown.append(report)
            continue
        key = (report.file_id, report.lost.topic)
        first_reports.setdefault(key, report)
        rows[key] |= dict(enumerate(report.lost.rows, report.lost.first))
    summed = [
        replace(report, reason=f"{sum(rows[key].values())} messages of {key[1]} are lost: {report.reason}", lost=None)
        for key, report in first_reports.items()
    ]
    return summed + unknown


def clear_report(root: RootPlace, report: Finding) -> None:
    """Remove a report after its finding was resolved; no effect if it is gone already.

    Raises:
        StorageError: the report cannot be removed.
    """
    objects_at(root).delete(report.key)


def _parse(name: re.Match[str], content: bytes) -> Finding:
    try:
        fields = json.loads(content)
        reason, found_at_ms = str(fields["reason"]), int(fields["found_at_ms"])
        lost = None if name["first"] is None else _parse_lost(name, str(fields["topic"]), fields["rows"])
    except (ValueError, KeyError, TypeError):
        reason, found_at_ms = "the report's content is damaged", 0
        lost = None if name["first"] is None else LostBatches("an unknown topic", int(name["first"]), _no_rows(name))
    path_id = None if name["path_id"] is None else PathId(int(name["path_id"]))
    key = f"{REPORTS}/{name.string}"
    return Finding(ReportKind(name["kind"]), FileId(name["file_id"]), path_id, reason, found_at_ms, lost, key)


def _parse_lost(name: re.Match[str], topic: str, rows: Iterable[object]) -> LostBatches:
    lost = LostBatches(topic, int(name["first"]), tuple(int(str(count)) for count in rows))
    if lost.end != int(name["end"]):
        raise ValueError("the name and the content disagree")
    return lost


def _no_rows(name: re.Match[str]) -> tuple[int, ...]:
    return (0,) * (int(name["end"]) - int(name["first"]))
