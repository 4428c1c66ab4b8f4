"""A journal file goes when nothing in it is needed, and not before; a log without an owner is deleted as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.journal.messages import CommitLog, LogConflict
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.metadata.records import (
    IncarnationRecord,
    LedgerRecord,
    SealRecord,
    SlotOwner,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.files import OS_FILES, OsFiles
from pulsar_on_spark.topic.maintenance.files.collect import Ages, collect
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.managed_ledger.cursor.record import CursorRecord, encode
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import ClosedJournals, seal_closed
from pulsar_on_spark.topic.managed_ledger.sealing.journal_cursors import CursorKey
from pulsar_on_spark.topic.managed_ledger.sealing.sealer import Sealer
from pulsar_on_spark.topic.managed_ledger.sealing.trim import Trimmer, clear_directories
from tests.kit import messages
from tests.kit.journal_logs import LogOnDisk, journal_files

from .test_sealer import entry, seal, sealed_entries


@pytest.fixture
def log(root: Root) -> LogOnDisk:
    made = LogOnDisk(root)
    made.open_ledgers(["a", "b"])
    return made


def trimmer(log: LogOnDisk, **options: object) -> Trimmer:
    return Trimmer(log.root, log.incarnation, grace_s=0, **options)  # type: ignore[arg-type]


def files_of(log: LogOnDisk) -> list[str]:
    return sorted({file for _, file in journal_files(log.root, log.incarnation)})


def fill(log: LogOnDisk, rounds: int) -> None:
    for number in range(rounds):
        log.append({"a": [entry(number)], "b": [entry(number)]})
        log.roll()


def problem(text: str) -> None:
    pytest.fail(text)


def subscribe(log: LogOnDisk) -> CursorRecord:
    """A subscription of the broker, and its cursor's first record."""
    topic = log.root.store.view().get(TopicRecord, TopicName.parse("a").full)
    assert topic is not None
    record = SubscriptionRecord(
        topic_id=topic.topic_id,
        name="s",
        type="Shared",
        face="broker",
        owners=(SlotOwner(consumer=log.incarnation, epoch=1, start_ledger=0, start_entry=0, slots=(0,)),),
        start_ledger=0,
        start_entry=0,
        start_epoch=1,
        created_at=datetime.now(UTC),
    )
    log.root.store.commit(lambda _: Change(puts=[record], keys={keys.subscription(topic.topic_id, "s"): None}))
    at = Position(log.ledger("a"), EntryId(0))
    return CursorRecord("snapshot", TopicId(topic.topic_id), "s", 1, 0, at)


def test_ended_fragments_go_when_they_are_sealed(log: LogOnDisk) -> None:
    fill(log, 3)
    assert trimmer(log).trim().deleted_files == 0
    assert len(files_of(log)) == 4
    seal(log)
    done = trimmer(log).trim()
    assert done.deleted_files == 9
    assert done.deleted_before == log.record.fragments[-1].first
    assert files_of(log) == ["w00000003"]
    assert trimmer(log).trim().deleted_files == 0
    log.append({"a": [entry(9)]})
    log.idle()
    seal(log)
    assert len(sealed_entries(log.root, log.ledger("a"))) == 4


@dataclass
class SyncedEntries:
    """The log entries of main that were synced, but for those `by_others`: they are on the disk perhaps."""

    log: LogOnDisk
    names: set[str] = field(default_factory=set)
    by_others: bool = False

    def note(self, fd: int) -> None:
        """Note the entries of a folder whose names are synced: their content was durable before."""
        if not self.by_others and os.readlink(f"/proc/self/fd/{fd}") == str(self._folder):
            self.names |= self._entries()

    def have_all(self) -> bool:
        return self._entries() <= self.names

    @property
    def _folder(self) -> Path:
        return self.log.root.path / "metadata" / "main" / "_delta_log"

    def _entries(self) -> set[str]:
        return {each.name for each in self._folder.glob("*.json")}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, root: Root) -> SyncedEntries:
    found = SyncedEntries(LogOnDisk(root))

    def fsync(fd: int, really: Callable[[int], None] = os.fsync) -> None:
        really(fd)
        found.note(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    found.log.open_ledgers(["a", "b"])
    return found


def test_a_trimmer_decides_and_deletes_by_durable_views(synced: SyncedEntries) -> None:
    """A power cut may take what others committed until it is synced: nothing rests on it before.

    Others seal between the trimmer's first look and its decision, and trim between its commit and its deletions.
    """
    log = synced.log
    fill(log, 2)
    root, others = Root.open(log.root.path), Root.open(log.root.path)
    meanwhile: list[Callable[[], object]] = [
        lambda: Sealer(others, log.incarnation, is_live=True).seal(tail=True),
        lambda: Trimmer(others, log.incarnation, grace_s=3600).trim(),
    ]
    decided = 0

    def commit(decide: Callable[[View], Change | None], really: Callable[..., View] = root.store.commit) -> View:
        view = really(decide)
        if meanwhile:
            synced.by_others = True
            meanwhile.pop(0)()
            synced.by_others = False
            assert not synced.have_all(), "others committed"
        return view

    root.store.commit = commit  # type: ignore[method-assign]

    def waiting_for(_: object) -> list[CursorKey]:
        nonlocal decided
        assert synced.have_all(), "that frames are sealed is on the disk"
        decided += 1
        return [] if decided == 1 else [(log.ledger("a"), "s")]

    class Files(OsFiles):
        def unlink(self, path: Path) -> None:
            assert synced.have_all(), "that frames are trimmed is on the disk"
            super().unlink(path)

    done = Trimmer(root, log.incarnation, waiting_for=waiting_for, grace_s=0, files=Files()).trim()
    assert (decided, meanwhile) == (2, [])
    assert done.deleted_files == 6


def test_files_stay_for_readers_under_way(log: LogOnDisk) -> None:
    fill(log, 1)
    seal(log)
    assert Trimmer(log.root, log.incarnation).trim().deleted_files == 0
    assert trimmer(log).trim().deleted_files == 3


def test_a_clock_that_was_set_back_keeps_no_files(log: LogOnDisk) -> None:
    fill(log, 1)
    seal(log)
    assert Trimmer(log.root, log.incarnation).trim().deleted_files == 0
    record = log.root.store.view().get(SealRecord, log.incarnation)
    assert record is not None
    later = record.model_copy(update={"trimmed_at": datetime.now(UTC) + timedelta(days=1)})
    log.root.store.commit(lambda _: Change(puts=[later], keys={keys.incarnation_seal(log.incarnation): None}))
    assert Trimmer(log.root, log.incarnation).trim().deleted_files == 3


def test_only_sealed_files_are_trimmed(log: LogOnDisk) -> None:
    fill(log, 2)
    one = Sealer(log.root, log.incarnation, is_live=True)
    one.seal(tail=True)
    fill(log, 2)
    assert trimmer(log).trim().deleted_files == 6
    assert files_of(log) == ["w00000002", "w00000003", "w00000004"]


def test_a_cursor_without_snapshot_keeps_its_file(log: LogOnDisk) -> None:
    record = subscribe(log)
    fill(log, 1)
    log.cursors([(b"k", encode(record))])
    log.roll()
    fill(log, 1)
    seal(log)
    for _ in range(2):
        done = trimmer(log).trim()
        assert done.waiting_cursors == ((record.topic_id, "s"),)
        assert files_of(log) == ["w00000001", "w00000002", "w00000003"]
    log.root.store.append_cursors([record.to_row()])
    assert trimmer(log).trim().deleted_files == 6


def test_a_stale_row_covers_nothing_and_a_deleted_subscription_needs_nothing(log: LogOnDisk) -> None:
    record = subscribe(log)
    log.cursors([(b"k", encode(record))])
    log.roll()
    log.append({"a": [entry(0)]})
    seal(log)
    log.root.store.append_cursors([CursorRow(record.topic_id, "s", WHOLE, 0, 99, 0, 0)])
    assert trimmer(log).trim().waiting_cursors
    log.root.delete_subscription("a", "s", force=True)
    assert trimmer(log).trim().deleted_files == 3


def test_an_owner_may_know_better_than_the_tables(log: LogOnDisk) -> None:
    record = subscribe(log)
    log.cursors([(b"k", encode(record))])
    log.roll()
    log.append({"a": [entry(0)]})
    seal(log)
    asked = []
    assert trimmer(log, waiting_for=lambda ranks: asked.append(ranks) or []).trim().deleted_files == 3
    assert asked == [{(record.topic_id, "s"): (1, 0)}]


def test_a_closed_log_goes_altogether(log: LogOnDisk) -> None:
    log.open_ledgers(["empty"])
    fill(log, 2)
    log.append({"a": [entry(2), entry(3)]})
    log.close()
    assert seal_closed(log.root, problem) == ClosedJournals(6, 0, 0)
    ends = {found.ledger_id: (found.closed, found.entries) for found in log.root.store.view().all(LedgerRecord)}
    assert ends == {log.ledger("a"): (True, 4), log.ledger("b"): (True, 2), log.ledger("empty"): (True, 0)}
    assert len(files_of(log)) == 3, "for readers under way"
    assert seal_closed(log.root, problem, grace_s=0) == ClosedJournals(0, 9, 1)
    view = log.root.store.view()
    assert view.all(IncarnationRecord) == []
    assert view.all(SealRecord) == []
    assert list(log.root.path.glob("storage/*/journal/*")) == []
    assert messages.values(log.root, "a") == [f"value {number}".encode() for number in (0, 1, 2, 3)]
    assert seal_closed(log.root, problem) == ClosedJournals()


def test_no_file_of_a_closed_log_goes_before_its_ledgers_have_ends(log: LogOnDisk) -> None:
    fill(log, 2)
    one = Sealer(log.root, log.incarnation, is_live=True)
    one.seal(tail=True)
    log.append({"a": [entry(2)]})
    log.close()
    assert trimmer(log).trim().deleted_files == 0
    assert len(files_of(log)) == 3


def test_a_writer_that_wakes_after_its_logs_removal_notices_it(log: LogOnDisk) -> None:
    fill(log, 1)
    before = log.record
    log.close()
    seal_closed(log.root, problem, grace_s=0)
    assert log.root.store.view().all(IncarnationRecord) == []
    answer = log.register.commit(CommitLog(before, 2))
    assert isinstance(answer, LogConflict)
    assert answer.record.last_frame is not None


def test_cursors_of_a_closed_log_are_written_to_the_table(log: LogOnDisk) -> None:
    first = subscribe(log)
    fill(log, 1)
    moved = CursorRecord("change", first.topic_id, "s", 1, 5, Position(log.ledger("a"), EntryId(1)))
    log.cursors([(b"k", encode(first)), (b"k", encode(moved))])
    log.close()
    seal_closed(log.root, problem, grace_s=0)
    (row,) = log.root.store.cursors().of(first.topic_id, "s")
    assert (row.slot, row.rank, row.ledger, row.entry) == (WHOLE, (1, 5), log.ledger("a"), 1)
    assert log.root.store.view().all(IncarnationRecord) == []


def test_a_path_that_is_away_keeps_its_file_and_the_record(log: LogOnDisk) -> None:
    fill(log, 1)
    log.close()
    away, back = log.root.path / "storage/1", log.root.path / "storage/away"
    away.rename(back)
    seal_closed(log.root, problem, grace_s=0)
    assert len(log.root.store.view().all(IncarnationRecord)) == 1
    back.rename(away)
    seal_closed(log.root, problem, grace_s=0)
    assert log.root.store.view().all(IncarnationRecord) == []
    assert journal_files(log.root, log.incarnation) == []


def test_an_unreachable_path_is_logged_once(log: LogOnDisk, caplog: pytest.LogCaptureFixture) -> None:
    fill(log, 1)
    log.close()
    seal(log, live=False)
    away, back = log.root.path / "storage/1", log.root.path / "storage/away"
    away.rename(back)
    trimming = trimmer(log)
    for _ in range(3):
        assert not trimming.trim().is_cleared
    assert [each.getMessage() for each in caplog.records if "is not deleted yet" in each.getMessage()] != []
    assert len(caplog.records) == len({each.getMessage() for each in caplog.records})
    back.rename(away)
    assert trimming.trim().is_cleared


def test_two_trimmers_and_a_sealer_at_once(log: LogOnDisk) -> None:
    fill(log, 5)
    log.close()
    other = Root.open(log.root.path)
    seal_closed(other, problem, grace_s=0)
    first, second = trimmer(log), Trimmer(other, log.incarnation, grace_s=0)
    assert first.trim().is_cleared
    assert second.trim().is_cleared


class KilledError(Exception):
    """Stands for the end of the process."""


class KilledFiles:
    """Real files; ends the process at the n-th step that changes a disk."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __getattr__(self, name: str) -> object:
        step = getattr(OS_FILES, name)
        if name not in ("unlink", "fsync_directory", "fdatasync", "rename", "create", "write", "mkdir"):
            return step

        def counted(*arguments: object) -> object:
            self.left -= 1
            if self.left < 0:
                raise KilledError
            return step(*arguments)

        return counted


def test_killed_at_any_step_of_deleting(log: LogOnDisk) -> None:
    fill(log, 3)
    log.append({"a": [entry(3)]})
    log.close()
    seal_closed(log.root, problem)
    steps = 0
    while True:
        try:
            done = trimmer(log, files=KilledFiles(steps)).trim()
        except KilledError:
            steps += 1
            view = log.root.store.view()
            assert len(view.all(IncarnationRecord)) == 1
            assert len(sealed_entries(log.root, LedgerId(log.ledger("a")))) == 4
        else:
            assert done.is_cleared
            break
        assert steps < 100
    assert steps > 2
    assert list(log.root.path.glob("storage/*/journal/*")) == []


@pytest.mark.parametrize("key", ["seal", "close", "trim", "prune"])
def test_killed_at_a_commit(log: LogOnDisk, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is there and whatever should have followed is not."""
    fill(log, 2)
    log.close()
    commit = log.root.store.commit
    kinds: list[str] = []

    def killed_after(decide):  # type: ignore[no-untyped-def]
        changes = []

        def noted(view):  # type: ignore[no-untyped-def]
            changes.append(decide(view))
            return changes[-1]

        view = commit(noted)
        change = changes[-1]
        if change is not None:
            kinds.append(
                "prune"
                if change.deletes or keys.incarnation_log(log.incarnation) in change.keys
                else "close"
                if any(isinstance(record, LedgerRecord) for record in change.puts)
                else "trim"
                if any(isinstance(record, SealRecord) and record.trimmed_at for record in change.puts)
                else "seal"
            )
            if kinds[-1] == key:
                raise KilledError
        return view

    monkeypatch.setattr(log.root.store, "commit", killed_after)
    with pytest.raises(KilledError):
        seal_closed(log.root, problem, grace_s=0)
    assert kinds[-1] == key
    monkeypatch.undo()
    seal_closed(log.root, problem, grace_s=0)
    assert log.root.store.view().all(IncarnationRecord) == []
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries
    clear_directories(log.root, log.root.store.view(durable=True))
    assert list(log.root.path.glob("storage/*/journal/*")) == []


def test_directories_of_the_unknown_stay(log: LogOnDisk) -> None:
    (log.root.path / "storage/0/journal/ffff").mkdir()
    assert clear_directories(log.root, log.root.store.view(durable=True)) == 0
    assert (log.root.path / "storage/0/journal/ffff").is_dir()
    assert (log.root.path / "storage/0/journal" / log.incarnation).is_dir()


def test_maintain_seals_journals_of_dead_brokers(log: LogOnDisk) -> None:
    fill(log, 2)
    log.close()
    assert maintain(log.root).journals == ClosedJournals(4, 0, 0)


def test_killed_at_any_step_of_sealing(log: LogOnDisk) -> None:
    """Only files that no topic names are left over; the next sealer takes all entries, once."""
    for number in range(3):
        log.append({"a": [entry(number)], "b": [entry(number)]})
    log.close()
    for steps in range(100):
        try:
            Sealer(log.root, log.incarnation, is_live=False, files=KilledFiles(steps)).seal(tail=True)  # type: ignore[arg-type]
        except KilledError:
            assert log.root.store.view().all(SealRecord) == []
        else:
            break
    assert steps > 10
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries
    collect(log.root, Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1))
    assert len(list(log.root.path.glob("storage/*/segments/*/*"))) == 3
    for ledger, entries in log.entries.items():
        assert sealed_entries(log.root, ledger) == entries
