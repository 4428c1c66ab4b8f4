"""The record keeps every test's outcome, and names those that a later run lost."""

from __future__ import annotations

from pathlib import Path

from conformance.outcomes import Outcome
from conformance.record import Record
from conformance.report import write_page

PASSED, FAILED = Outcome("passed"), Outcome("failed", "a|b <c>")


def test_a_saved_record_is_loaded(tmp_path: Path) -> None:
    record = Record()
    record.put("go-client", "ours", {"TestA": PASSED, "TestB": FAILED})
    record.put("go-client", "pulsar", {"TestA": PASSED, "TestB": PASSED})
    record.save(tmp_path / "record.json")
    loaded = Record.load(tmp_path / "record.json")
    assert loaded.outcomes("go-client", "ours") == {"TestA": PASSED, "TestB": FAILED}
    assert list(loaded.outcomes("go-client", "pulsar")) == ["TestA", "TestB"]
    assert loaded.outcomes("go-admin", "ours") == {}


def test_a_missing_record_is_empty(tmp_path: Path) -> None:
    assert Record.load(tmp_path / "record.json").outcomes("go-client", "ours") == {}


def test_tests_that_no_longer_pass_have_fallen() -> None:
    record = Record({"go-client": {"ours": {"TestA": PASSED, "TestB": PASSED, "TestC": FAILED, "TestD": PASSED}}})
    now = {"TestA": PASSED, "TestB": FAILED, "TestC": FAILED, "TestE": FAILED}
    assert record.fallen("go-client", "ours", now) == ["TestB", "TestD"]
    assert record.fallen("go-client", "pulsar", now) == []


def test_the_page_has_sums_and_every_test_that_did_not_pass(tmp_path: Path) -> None:
    record = Record({"go-client": {"ours": {"TestA": PASSED, "TestB": FAILED}, "pulsar": {"TestB": PASSED}}})
    write_page(record, tmp_path / "page.md")
    page = tmp_path.joinpath("page.md").read_text()
    assert "| 2 | 1 passed, 1 failed | 1 passed, 0 failed |" in page
    assert "| `TestB` | failed | passed | a\\|b &lt;c> |" in page
    assert "| `TestA` |" not in page
