from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pulsar_on_spark.datasource.report_log import ReportLog
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.storage.reports import Finding, ReportKind, write_report


def bad_copy(number: int) -> Finding:
    return Finding(ReportKind.BAD_COPY, FileId(f"f{number}"), PathId(1), f"reason {number}", 5)


def test_each_new_report_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_report(tmp_path, bad_copy(0))
    reports = ReportLog(tmp_path)
    with caplog.at_level(logging.WARNING):
        reports.log_new_reports()
        assert caplog.messages == []
        write_report(tmp_path, bad_copy(1))
        write_report(tmp_path, bad_copy(2))
        reports.log_new_reports()
        reports.log_new_reports()
    assert caplog.messages == [
        "A task reported: bad-copy of file f1 on storage path 1: reason 1",
        "A task reported: bad-copy of file f2 on storage path 1: reason 2",
    ]


def test_a_root_without_reports_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ReportLog(tmp_path).log_new_reports()
    assert caplog.messages == []
