"""The driver's log of its tasks' findings: bad copies and losses, which tasks report as files under the root."""

from __future__ import annotations

import logging
from pathlib import Path

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.reports import REPORTS_DIRECTORY, Finding, read_reports

log = logging.getLogger(__name__)


class ReportLog:
    """Logs each new report once. A check costs one stat if there is none."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._changed_ns = self._changed()
        self._known: dict[str, str] = {}
        self._known = self._read()

    def log_new_reports(self) -> None:
        """Log new reports. Unreadable reports are left to `pulsarpy status`."""
        changed_ns = self._changed()
        if changed_ns == self._changed_ns:
            return
        self._changed_ns = changed_ns
        texts = self._read()
        for name in sorted(texts.keys() - self._known.keys()):
            log.warning("A task reported: %s", texts[name])
        self._known = texts

    def _changed(self) -> int:
        try:
            return (self._root / REPORTS_DIRECTORY).stat().st_mtime_ns
        except OSError:
            return 0

    def _read(self) -> dict[str, str]:
        try:
            return {report.file_name: _words(report) for report in read_reports(self._root)}
        except StorageError:
            return self._known


def _words(report: Finding) -> str:
    where = "" if report.path_id is None else f" on storage path {report.path_id}"
    lost = "" if report.lost is None else f"{sum(report.lost.rows)} messages of {report.lost.topic} are lost: "
    return f"{report.kind} of file {report.file_id}{where}: {lost}{report.reason}"
