"""The driver's log of bad copies and losses, which its tasks find and report in the root."""

from __future__ import annotations

import logging

from pulsar_on_spark.model.errors import StorageError
from pulsar_on_spark.storage.objects.contract import Version
from pulsar_on_spark.storage.reports import REPORTS, Finding, read_reports
from pulsar_on_spark.storage.root_place import RootPlace, objects_at

log = logging.getLogger(__name__)


class ReportLog:
    """Logger of the reports that tasks write after this object is created. Each report is logged once."""

    def __init__(self, root: RootPlace) -> None:
        self._root = root
        self._listed = self._list()
        self._known: dict[str, str] = {}
        self._known = self._read()

    def log_new_reports(self) -> None:
        """Log the reports that are new since the last call. If no report is new, the call makes only one listing.

        Reports that cannot be read are ignored; `pulsarpy status` shows them.
        """
        listed = self._list()
        if listed == self._listed:
            return
        self._listed = listed
        texts = self._read()
        for name in sorted(texts.keys() - self._known.keys()):
            log.warning("A task reported: %s", texts[name])
        self._known = texts

    def _list(self) -> dict[str, Version] | None:
        """Return the versions of the reports, by key; None if they cannot be listed."""
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
