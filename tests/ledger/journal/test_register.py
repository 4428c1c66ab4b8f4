"""The register on a real metadata store: compare-and-set, takeover, unknown outcomes."""

from __future__ import annotations

import queue

import pytest

from pulsar_on_spark.ledger.journal.log import Copy, Fragment, LogRecord, LogState
from pulsar_on_spark.ledger.journal.messages import (
    CommitLog,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogRead,
)
from pulsar_on_spark.ledger.journal.register import LogRegister
from pulsar_on_spark.ledger.journal.register_thread import RegisterThread
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IncarnationRecord, RootRecord
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import IncarnationId, PathId
from tests.kit.open_files import no_descriptors

NAME = IncarnationId("broker-1")
COPIES = (Copy(PathId(0), "1"), Copy(PathId(2), "1"))
FIRST = LogRecord(LogState.OPEN, 3, 2, (Fragment(0, COPIES), Fragment(None, COPIES)), None, "w:1")
TAKEN = LogRecord(LogState.IN_RECOVERY, 3, 2, FIRST.fragments, None, "r:1")
CLOSED = LogRecord(LogState.CLOSED, 3, 2, (Fragment(0, COPIES), Fragment(7, COPIES[:2])), 9, "r:2")


@pytest.fixture
def store(tmp_path):
    return MetadataStore.create(tmp_path / "root", [RootRecord(format_version=1, cluster_id="c", quorum="3/3/2")])


def test_a_record_is_read_back_as_committed(store, tmp_path):
    register = LogRegister(store, NAME)
    assert register.read() == LogRead(None, 0)
    for version, record in enumerate((FIRST, TAKEN, CLOSED)):
        assert register.commit(CommitLog(record, version)) == LogCommitted(version + 1)
        assert LogRegister(MetadataStore(tmp_path / "root"), NAME).read() == LogRead(record, version + 1)


def test_a_commit_at_an_old_version_loses_and_gets_the_current_record(store, tmp_path):
    register, other = LogRegister(store, NAME), LogRegister(MetadataStore(tmp_path / "root"), NAME)
    register.commit(CommitLog(FIRST, 0))
    assert other.commit(CommitLog(TAKEN, 0)) == LogConflict(FIRST, 1)
    assert other.commit(CommitLog(TAKEN, 1, moves_seal=True)) == LogCommitted(2)
    assert register.commit(CommitLog(CLOSED, 1)) == LogConflict(TAKEN, 2)
    assert register.read() == LogRead(TAKEN, 2)


def test_only_commits_that_request_it_move_the_seal_key(store):
    register = LogRegister(store, NAME)
    register.commit(CommitLog(FIRST, 0))
    assert store.key_version(keys.incarnation_seal(NAME)) is None
    register.commit(CommitLog(TAKEN, 1, moves_seal=True))
    assert store.key_version(keys.incarnation_seal(NAME)) == 1
    register.commit(CommitLog(CLOSED, 2))
    assert store.key_version(keys.incarnation_seal(NAME)) == 1


def test_incarnations_do_not_meet(store):
    one, two = LogRegister(store, NAME), LogRegister(store, IncarnationId("broker-2"))
    assert one.commit(CommitLog(FIRST, 0)) == two.commit(CommitLog(FIRST, 0)) == LogCommitted(1)
    two.commit(CommitLog(TAKEN, 1))
    assert one.read() == LogRead(FIRST, 1)


def test_fields_of_newer_versions_survive(store):
    row = IncarnationRecord.model_validate({"incarnation": NAME, "state": "OPEN", "address": "host:6650"})
    store.commit(lambda view: Change(puts=[row], keys={keys.incarnation_seal(NAME): None}))
    LogRegister(store, NAME).commit(CommitLog(FIRST, 0))
    stored = store.view().get(IncarnationRecord, NAME)
    assert (stored.model_extra, stored.log_token) == ({"address": "host:6650"}, "w:1")


def test_a_commit_that_fails_has_an_unknown_outcome(store, tmp_path):
    register = LogRegister(store, NAME)
    register.commit(CommitLog(FIRST, 0))
    log = tmp_path / "root" / "metadata" / "main" / "_delta_log"
    log.rename(log.with_name("away"))
    assert register.commit(CommitLog(TAKEN, 1)) == LogCommitUnknown()
    with pytest.raises(MetadataError):
        register.read()
    log.with_name("away").rename(log)
    assert register.read() == LogRead(FIRST, 1)


def test_a_record_that_no_journal_writes_is_an_error(store):
    row = IncarnationRecord(incarnation=NAME, state="CLOSED")
    store.commit(lambda view: Change(puts=[row], keys={keys.incarnation_log(NAME): None}))
    with pytest.raises(MetadataError, match=r"broker-1 is inconsistent \(last_frame belongs"):
        LogRegister(store, NAME).read()


def test_a_time_without_descriptors_does_not_end_a_register(store, monkeypatch, caplog):
    """A journal waits for metadata that cannot be read for a while."""
    monkeypatch.setattr("pulsar_on_spark.metadata.patience.READ_ATTEMPTS", 1)
    register = LogRegister(store, NAME)
    register.commit(CommitLog(FIRST, 0))
    reports = queue.SimpleQueue()
    thread = RegisterThread(register, lambda failures: None, reports.put, 30.0)
    store._main._tip = None  # as after an interrupted refresh: the log is read again
    with no_descriptors():
        thread.commit(CommitLog(TAKEN, 1))
        assert isinstance(reports.get(timeout=30), LogCommitUnknown)
        thread.read()
        while "cannot be read" not in caplog.text:
            with pytest.raises(queue.Empty):
                reports.get(timeout=0.05)
    assert reports.get(timeout=30) == LogRead(FIRST, 1)
    thread.stop()
