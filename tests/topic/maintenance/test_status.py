"""`status` agrees with the root."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import FileRecord, LedgerRecord, LostEntries
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.ids import EARLIEST, FileId, PathId, Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.health import Condition
from pulsar_on_spark.storage.reports import Finding, ReportKind, read_reports, write_report
from pulsar_on_spark.storage.storage_path import PathFailure
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages
from tests.kit.running_incarnation import RunningIncarnation
from tests.kit.waiting import wait_until

Locate = Callable[[Root, FileRecord, int], Path]


def test_a_new_root(root: Root) -> None:
    found = root.status()
    assert (found.root, found.cluster_id, found.quorum) == (root.path, root.cluster_id, "3/3/2")
    assert [(path.path_id, path.directory, path.state) for path in found.paths] == [
        (number, root.path / "storage" / str(number), "writable") for number in range(3)
    ]
    assert all(path.free_bytes and path.is_well and not path.copies for path in found.paths)
    assert found.topics == found.subscriptions == found.bad_copies == found.losses == ()
    assert (found.missing_copies, found.verified_copies) == (0, None)


def test_topics_are_summed_over_their_partitions(root: Root) -> None:
    root.create_topic("t", 3)
    root.create_topic("empty")
    for _ in range(4):
        messages.write(root, "t", [b"12345"] * 30, [f"k{row}".encode() for row in range(30)])
    empty, topic = root.status().topics
    assert (empty.name, empty.partitions, empty.messages, empty.ledgers) == (
        "persistent://public/default/empty",
        None,
        0,
        0,
    )
    assert (topic.partitions, topic.messages, topic.ledgers, topic.segments, topic.files) == (3, 120, 3, 12, 4)
    keys = sum(len(f"k{row}") for row in range(30))
    assert topic.bytes == 4 * (30 * 5 + keys)


def test_paths_show_their_expected_copies_and_problems(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    (file,) = root.store.view().all(FileRecord)
    (root.path / "storage" / "2").rename(root.path / "away")
    root.mark_failed([PathFailure(PathId(2), "gone under a write")])
    messages.write(root, "t", [b"w"])

    found = root.status()

    good, _, bad = found.paths
    assert (good.copies, good.condition, good.reason) == (2, Condition.WELL, "")
    assert good.bytes >= file.length
    assert (bad.state, bad.copies, bad.bytes, bad.free_bytes) == ("read-only", 1, file.length, None)
    assert bad.condition is Condition.UNREACHABLE
    assert "Storage path 2" in bad.reason
    assert found.missing_copies == 2, "one that was not written, and one that is away"

    (root.path / "away").rename(root.path / "storage" / "2")
    found = root.status()
    assert found.missing_copies == 1
    assert (found.paths[2].condition, found.paths[2].reason) == (Condition.FAILING, "gone under a write")


def test_copies_on_a_foreign_path_are_missing(root: Root) -> None:
    root.create_topic("t")
    for number in range(2):
        messages.write(root, "t", [str(number).encode()])
    storage = root.path / "storage"
    shutil.rmtree(storage / "0")
    shutil.copytree(storage / "1", storage / "0")
    found = root.status()
    assert found.missing_copies == 2
    assert "mount the right disk" in found.paths[0].reason


def test_reports_of_files_that_are_no_more_do_not_count(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    (file,) = root.store.view().all(FileRecord)
    reports = [
        Finding(ReportKind.BAD_COPY, FileId(file.file_id), PathId(1), "rotten", 1),
        Finding(ReportKind.LOSS, FileId(file.file_id), None, "lost", 1),
        Finding(ReportKind.BAD_COPY, FileId("0" * 32 + "-0"), PathId(1), "of another", 1),
    ]
    for report in reports:
        write_report(root.path, report)
    found = root.status()
    assert (found.bad_copies, found.losses) == ((reports[0],), (reports[1],))
    assert [path.bad_copies for path in found.paths] == [0, 1, 0]


def test_verify_reads_every_copy(root: Root, copy_of: Locate) -> None:
    """A bad copy is reported, also by later calls; a repaired one is cleared."""
    root.create_topic("t")
    for number in range(3):
        messages.write(root, "t", [str(number).encode() * 100])
    files = root.store.view().all(FileRecord)
    broken, gone = copy_of(root, files[0], 0), copy_of(root, files[2], 1)
    whole = broken.read_bytes()
    broken.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    gone.unlink()
    steps: list[tuple[str, int, int]] = []

    found = root.status(verify=True, progress=lambda *each: steps.append(each))

    assert found.verified_copies == 7
    assert {(r.file_id, r.path_id) for r in found.bad_copies} == {(files[0].file_id, 0), (files[2].file_id, 1)}
    assert [path.bad_copies for path in found.paths] == [1, 1, 0]
    assert steps[-1] == ("verify", 9, 9)
    assert root.status().bad_copies == found.bad_copies

    broken.write_bytes(whole)
    assert root.status(verify=True).verified_copies == 8
    assert [report.file_id for report in read_reports(root.path)] == [files[2].file_id]


@pytest.mark.parametrize("type_", ["Exclusive", "Shared"])
def test_subscriptions_and_their_backlog(root: Root, type_: str) -> None:
    root.create_topic("t", 2)
    for number in range(10):
        messages.write(root, "t", [f"{number}-{row}".encode() for row in range(2)])
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "sub", type_, dict.fromkeys(parts, EARLIEST))
    (found,) = root.status().subscriptions
    assert (found.topic, found.name, found.type) == ("persistent://public/default/t", "sub", type_)
    assert (found.backlog_messages, found.backlog_bytes) == (20, 60)
    assert [cursor.mark_delete for cursor in found.cursors] == [EARLIEST, EARLIEST]

    first = messages.read(root, "t")[0]
    ledger, slots = first.id.ledger, 1 if type_ == "Exclusive" else 64
    store = root.store
    store.append_cursors([CursorRow(parts[0].topic_id, "sub", slot, 1, 1, ledger, 4) for slot in range(slots)])
    (found,) = root.subscriptions()
    assert found.cursors[0].mark_delete == Position(ledger, first.id.entry + 4)
    assert (found.cursors[0].backlog_messages, found.cursors[1].backlog_messages) == (6, 10)
    assert (found.backlog_messages, found.backlog_bytes) == (16, 48)


def test_incarnations_show_their_unsealed_frames(root: Root):
    root.create_topic("t")
    with RunningIncarnation(root) as broker:
        broker.send("t", [b"1", b"2", b"3"])
        # The next fragment is prepared by a task of its own, which an acknowledgement doesn't wait for.
        wait_until(lambda: root.status().incarnations[0].fragments == 2, "one fragment is prepared ahead")
        (found,) = root.status().incarnations
        assert (found.incarnation, found.state, found.lease) == (broker.incarnation.id, "OPEN", "renewed")
        assert found.open_ledgers == 1
        assert found.journal_bytes > 3
        broker.stop()
    status = root.status()
    (found,) = status.incarnations
    assert (found.state, found.lease, found.open_ledgers) == ("CLOSED", "missing", 0)
    (topic,) = status.topics
    assert (topic.messages, topic.segments, topic.files, topic.ledgers) == (3, 0, 0, 1)
    seal_closed(root, pytest.fail, grace_s=0)
    seal_closed(root, pytest.fail, grace_s=0)
    assert root.status().incarnations == ()
    assert root.status().topics[0].segments == 1


def test_entries_that_were_given_up_are_named(root: Root) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"v"])
    (ledger,) = root.store.view().all(LedgerRecord)
    lost = ledger.model_copy(update={"lost": (LostEntries(ledger_id=ledger.ledger_id, first=5, end=9),)})
    topic = keys.topic("persistent://public/default/t")
    root.store.commit(lambda _: Change(puts=[lost], keys={topic: None}))
    assert root.status().topics[0].given_up == ((ledger.ledger_id, 5, 9),)
