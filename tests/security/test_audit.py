"""The audit's lines, the counting of refusals, and the file that they are written to."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.security import audit_log
from pulsar_on_spark.security.audit import MAX_REFUSALS, AuditRecord, Refusals, Verdict
from pulsar_on_spark.security.audit_log import Audit, AuditFile, AuditLogger
from pulsar_on_spark.security.principal import Principal

ALICE = Principal("alice", method="token", credential="0011aabb")


def refused(number: int = 0, address: str = "10.0.0.1:1", **others: Any) -> AuditRecord:
    return AuditRecord(address, "PRODUCE", Verdict.REFUSED, resource=f"topic-{number}", reason="not granted", **others)


def test_a_line_is_json_and_values_cannot_start_another_line() -> None:
    record = AuditRecord(
        "10.0.0.1:1", 'PUT"}', Verdict.FAILED, resource="a\n{}\r\u2028\x00\ud800" + "x" * 5000, status=404
    )
    line = record.line(1.23456)
    assert "\n" not in line
    assert line.isascii()
    found = json.loads(line)
    assert (found["time"], found["operation"], found["decision"], found["status"]) == (1.235, 'PUT"}', "failed", 404)
    assert len(found["resource"]) == 1024
    assert found.keys() == {"time", "address", "operation", "decision", "resource", "status"}


def test_a_line_names_the_client() -> None:
    proxied = Principal("proxy", "alice", method="tls")
    found = json.loads(refused().by(proxied).line(0, times=3))
    assert [found[name] for name in ("role", "original_role", "method", "times")] == ["proxy", "alice", "tls", 3]
    assert refused().by(None) == refused()


def test_a_refused_token_is_named_and_not_the_token_that_it_should_replace() -> None:
    assert refused(credential="ccddeeff").by(ALICE).credential == "ccddeeff"


def test_the_same_refusal_is_counted() -> None:
    counted = Refusals()
    assert counted.is_first(refused())
    assert not counted.is_first(refused(address="10.0.0.1:2", credential="abcd"))
    assert counted.is_first(refused(address="10.0.0.2:1"))
    assert counted.is_first(refused(1))
    assert [(each.address, each.resource, times) for each, times in counted.summary()] == [("10.0.0.1", "topic-0", 1)]
    assert counted.is_first(refused())


def test_the_kinds_of_refusals_are_bounded() -> None:
    counted = Refusals()
    written = [number for number in range(5 * MAX_REFUSALS) if counted.is_first(refused(number))]
    assert len(written) == MAX_REFUSALS
    ((others, times),) = counted.summary()
    assert times == 4 * MAX_REFUSALS
    assert "too many" in others.reason


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_file_has_all_lines_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_text('{"time": 0}\n')
    file.chmod(0o644)
    audit = Audit(AuditFile(file), lambda: 7.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    audit.note_login("h:1", ALICE)
    for _ in range(3):
        audit.note_refusal("h:1", ALICE, "PRODUCE", "persistent://a/b/c", reason="not granted")
    audit.note_change("h:1", ALICE, "PUT", "/admin/v2/tenants/a", 204)
    audit.note_change("h:1", ALICE, "PUT", "/admin/v2/tenants/a", 409)
    audit.note_logout("h:1", ALICE)
    audit.close()
    _, login, refusal, allowed, failed, logout, again = lines(file)
    assert (login["operation"], login["role"]) == ("LOGIN", "alice")
    assert {each["credential"] for each in (login, refusal, allowed, failed, logout)} == {"0011aabb"}
    assert (refusal["decision"], refusal["reason"], "times" in refusal) == ("refused", "not granted", False)
    assert [each["decision"] for each in (allowed, failed)] == ["allowed", "failed"]
    assert (logout["operation"], again["times"], again["time"]) == ("LOGOUT", 2, 7.0)


def test_a_rotated_file_is_opened_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = folder / "audit.log"
    audit = Audit(AuditFile(file))
    audit.note_login("first", ALICE)
    file.rename(tmp_path / "old")
    audit.note_login("second", ALICE)
    audit.reopen()
    audit.note_login("third", ALICE)
    assert [each["address"] for each in lines(tmp_path / "old")] == ["first", "second"]
    assert [each["address"] for each in lines(file)] == ["third"]
    file.rename(tmp_path / "older")
    folder.rmdir()
    audit.reopen()
    assert "cannot be opened again" in caplog.text
    audit.note_login("fourth", ALICE)
    assert lines(tmp_path / "older")[-1]["address"] == "fourth"


def test_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be written .*set another audit_log_file"):
        AuditFile(tmp_path)
    audit = Audit(AuditFile(tmp_path / "audit.log"))
    monkeypatch.setattr(audit_log.os, "write", lambda file, data: 1)
    audit.note_login("h:1", ALICE)
    assert "only a part was written" in caplog.text
    assert '"operation": "LOGIN"' in caplog.text


def test_devices_keep_their_permissions() -> None:
    before = Path("/dev/null").stat().st_mode
    Audit(AuditFile(Path("/dev/null"))).note_login("h:1", ALICE)
    assert Path("/dev/null").stat().st_mode == before


def test_without_a_file_the_log_has_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Audit(AuditLogger()).note_login("h:1", ALICE)
    assert [(each.name, json.loads(each.getMessage())["role"]) for each in caplog.records] == [
        ("pulsar_on_spark.audit", "alice")
    ]
