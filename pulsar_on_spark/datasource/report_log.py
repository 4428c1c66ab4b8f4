"""The driver's log of the bad copies and losses that its tasks find; tasks leave reports of them in the root."""

from __future__ import annotations

import logging

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.objects.contract import Version
from pulsar_on_spark.storage.reports import REPORTS, Finding, read_reports
from pulsar_on_spark.storage.root_place import RootPlace, objects_at

log = logging.getLogger(__name__)


class ReportLog:
    """Log of new reports, each of which it logs once. A check costs one listing if there is no new report."""

    def __init__(self, root: RootPlace) -> None:
        self._root = root
        self._listed = self._list()
        self._known: dict[str, str] = {}
        self._known = self._read()

    def log_new_reports(self) -> None:
        """Log new reports. Unreadable reports are left to `pulsarpy status`."""
        listed = self._list()
        if listed == self._listed:
            return
        self._listed = listed
        texts = self._read()
        for name in sorted(texts.keys() - self._known.keys()):
            log.warning("A task reported: %s", texts[name])
        self._known = texts

    def _list(self) -> dict[str, Version] | None:
        try:
            return {listed.key: listed.version for listed in objects_at(self._root).list_after(REPORTS)}
        except StorageError:
            return None

    def _read(self) -> dict[str, str]:
        try:
            return {report.key: _words(report) for report in read_reports(self._root)}
        except StorageError:
            return self._known


def _words(report: Finding) -> str:
    where = "" if report.path_id is None else f" on storage path {report.path_id}"
    lost = "" if report.lost is None else f"{sum(report.lost.rows)} messages of {report.lost.topic} are lost: "
    return f"{report.kind} of file {report.file_id}{where}: {lost}{report.reason}"
