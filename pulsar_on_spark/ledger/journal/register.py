"""The register of an incarnation's log: a record in the main table, changed by compare-and-set on its `log` key."""

from __future__ import annotations

from pulsar_on_spark.ledger.journal.log import Copy, Fragment, LogRecord, LogState, fault_in
from pulsar_on_spark.ledger.journal.messages import (
    CommitLog,
    LogCommitted,
    LogCommitUnknown,
    LogConflict,
    LogRead,
)
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import IncarnationRecord, JournalFragment
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import MetadataError
from pulsar_on_spark.model.ids import IncarnationId, PathId


class LogRegister:
    """Compare-and-set register of a log's record in the main table. Thread-safe; calls block until they are done."""

    def __init__(self, store: MetadataStore, incarnation: IncarnationId) -> None:
        self._store = store
        self.incarnation = incarnation
        self._log_key = keys.incarnation_log(incarnation)
        self._seal_key = keys.incarnation_seal(incarnation)

    def commit(self, commit: CommitLog) -> LogCommitted | LogConflict | LogCommitUnknown:
        """Compare-and-set the record. The record in the answer is durable, with all metadata that it depends on.

        If the store cannot determine the outcome of the commit, the answer is `LogCommitUnknown`. Then a later read
        shows by the record's token whether this commit succeeded.
        """
        conflict: LogConflict | None = None

        def decide(view: View) -> Change | None:
            nonlocal conflict
            conflict = None
            version = self._store.key_version(self._log_key) or 0
            if version != commit.expected_version:
                record = self._record(view)
                assert record is not None, "a key with a newer version has a record"
                conflict = LogConflict(record, version)
                return None
            moved: dict[str, int | None] = {self._log_key: None}
            if commit.moves_seal:
                moved[self._seal_key] = None
            return Change(puts=[self._row(view, commit.record)], keys=moved)

        try:
            self._store.commit(decide)
        except MetadataError as error:
            return LogCommitUnknown(str(error))
        return conflict or LogCommitted(commit.expected_version + 1)

    def read(self) -> LogRead:
        """Return the current record, which is durable; a `LogRead` of None if there never was one.

        Raises:
            MetadataError: the table cannot be read, or the record is inconsistent or cannot be made durable.
        """
        answer = LogRead(None, 0)

        def decide(view: View) -> None:
            # A commit without changes reads record and key version at the same moment.
            nonlocal answer
            answer = LogRead(self._record(view), self._store.key_version(self._log_key) or 0)

        self._store.commit(decide)
        return answer

    def _record(self, view: View) -> LogRecord | None:
        # A record is removed only after it was CLOSED for good, and a writer that wakes up late must see that.
        """Return the log's record in a view, even a removed one; None if there never was one."""
        row = view.last(IncarnationRecord, self.incarnation)
        return None if row is None else log_record(row)

    def _row(self, view: View, record: LogRecord) -> IncarnationRecord:
        existing = view.get(IncarnationRecord, self.incarnation)
        fields = {
            "state": record.state.value,
            "write_quorum": record.write_quorum,
            "ack_quorum": record.ack_quorum,
            "fragments": tuple(_stored(fragment) for fragment in record.fragments),
            "last_frame": record.last_frame,
            "log_token": record.token,
            "given_up_paths": record.given_up,
        }
        if existing is not None:  # keep the fields that a newer version has added
            return existing.model_copy(update=fields)
        return IncarnationRecord.model_validate({"incarnation": self.incarnation, **fields})


def log_record(row: IncarnationRecord) -> LogRecord:
    """Convert an incarnation's record to the protocol's.

    Raises:
        MetadataError: the record is inconsistent.
    """
    record = LogRecord(
        state=LogState(row.state),
        write_quorum=row.write_quorum,
        ack_quorum=row.ack_quorum,
        fragments=tuple(
            Fragment(fragment.first, tuple(Copy(PathId(path), file) for path, file in fragment.copies))
            for fragment in row.fragments
        ),
        last_frame=row.last_frame,
        token=row.log_token,
        given_up=tuple(PathId(path) for path in row.given_up_paths),
    )
    fault = fault_in(record)
    if fault is not None:
        raise MetadataError(
            f"The record of incarnation {row.incarnation} is inconsistent ({fault}): restore the metadata of this root."
        )
    return record


def _stored(fragment: Fragment) -> JournalFragment:
    return JournalFragment(first=fragment.first, copies=tuple((copy.path, copy.file) for copy in fragment.copies))
