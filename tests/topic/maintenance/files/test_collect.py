"""Garbage goes; what a topic names, or a slow writer may still commit, never does."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pulsar_on_spark.ledger.segments.segment_format import write_id_of
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import FileRecord, SegmentRecord, WriteRecord
from pulsar_on_spark.model.errors import WriteAbortedError
from pulsar_on_spark.model.ids import FileId, PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.reports import Finding, ReportKind, read_reports, write_report
from pulsar_on_spark.topic.data_path.attach import TaskOutput, attach
from pulsar_on_spark.topic.data_path.transactions import batch_of
from pulsar_on_spark.topic.maintenance.files import merge
from pulsar_on_spark.topic.maintenance.files.collect import DAY_S, Ages, CollectReport, collect
from tests.kit import messages

Stored = Callable[[Root], list[str]]
AT_ONCE = Ages(abort_after_s=-1, keep_replaced_s=-1, keep_verdicts_s=-1)


@pytest.fixture
def topic(root: Root) -> str:
    return root.create_topic("t").name


def staged(root: Root, value: bytes = b"v") -> tuple[str, TaskOutput]:
    write_id = messages.new_write_id()
    return write_id, messages.stage(root, {"t": messages.make_rows([value])}, write_id)


def later(seconds: float) -> float:
    return time.time() + seconds


def test_files_that_topics_name_are_kept(root: Root, topic: str, stored_files: Stored) -> None:
    for number in range(5):
        messages.write(root, topic, [str(number).encode()])
    before = stored_files(root)
    assert collect(root, AT_ONCE) == CollectReport()
    assert stored_files(root) == before
    assert len(messages.read(root, topic)) == 5


def test_a_killed_write_is_aborted_after_a_day_and_then_deleted(root: Root, topic: str, stored_files: Stored) -> None:
    """A driver killed between writing and committing: nothing is visible, and the space comes back."""
    write_id, output = staged(root)
    assert collect(root, clock=later(DAY_S - 60)) == CollectReport()
    assert len(stored_files(root)) == 3

    done = collect(root, clock=later(DAY_S + 60))

    assert (done.aborted_writes, done.deleted_files) == (1, 3)
    assert stored_files(root) == []
    assert messages.read(root, topic) == []
    verdict = root.store.view().get(WriteRecord, write_id)
    assert verdict is not None
    assert verdict.status == "aborted"
    with pytest.raises(WriteAbortedError):
        attach(root.store, write_id, [output], None)
    collect(root, AT_ONCE, clock=later(100 * DAY_S))
    assert root.store.view().get(WriteRecord, write_id) is not None, "aborts stay for good"


def test_a_write_with_one_young_file_is_not_aborted(root: Root, topic: str, stored_files: Stored) -> None:
    """A long write stages its first file days before it commits."""
    write_id, first = staged(root)
    for path in root.path.glob("storage/*/segments/*/*"):
        os.utime(path, (time.time() - 3 * DAY_S,) * 2)
    second = messages.stage(root, {"t": messages.make_rows([b"w"])}, write_id, 1)
    assert collect(root) == CollectReport()
    attach(root.store, write_id, [first, second], None)
    assert messages.values(root, topic) == [b"v", b"w"]


def test_leftovers_of_retries_go_at_once(root: Root, topic: str, stored_files: Stored) -> None:
    write_id = messages.new_write_id()
    attempts = [messages.stage(root, {"t": messages.make_rows([b"v"])}, write_id) for _ in range(3)]
    attach(root.store, write_id, [attempts[1]], None)
    assert len(stored_files(root)) == 9
    assert collect(root).deleted_files == 6
    assert len(stored_files(root)) == 3
    assert messages.values(root, topic) == [b"v"]


def test_unfinished_files(root: Root, topic: str, stored_files: Stored) -> None:
    """A task that was killed leaves temporary files, also beside committed ones."""
    write_id, output = staged(root)
    attach(root.store, write_id, [output], None)
    copy = next(root.path.glob("storage/0/segments/*/*.arrow"))
    beside = copy.with_name(copy.name + ".tmp-0123abcd")
    other = copy.with_name(f"{messages.new_write_id()}-00.arrow.tmp-89ab")
    for tmp in (beside, other):
        tmp.write_bytes(b"half")
    assert collect(root) == CollectReport()
    done = collect(root, clock=later(DAY_S + 60))
    assert (done.deleted_files, done.deleted_bytes, done.aborted_writes) == (2, 8, 1)
    assert not beside.exists()
    assert not other.exists()
    assert messages.values(root, topic) == [b"v"]


def test_foreign_files_are_left_alone(root: Root, topic: str) -> None:
    messages.write(root, topic, [b"v"])
    folder = next(root.path.glob("storage/0/segments/*"))
    for name in ("thesis.arrow", "notes.txt", "x-1.arrow.tmp-00"):
        (folder / name).write_text("mine")
    collect(root, AT_ONCE, clock=later(10 * DAY_S))
    assert {"thesis.arrow", "notes.txt", "x-1.arrow.tmp-00"} <= set(os.listdir(folder))


def test_replaced_files_stay_ten_minutes(root: Root, topic: str, stored_files: Stored) -> None:
    for number in range(4):
        messages.write(root, topic, [str(number).encode()])
    merge.merge(root)
    assert len(stored_files(root)) == 15
    assert collect(root, clock=later(540)).deleted_files == 0
    done = collect(root, clock=later(660))
    assert done.deleted_files == 12
    assert len(stored_files(root)) == 3
    assert len(root.store.view().all(FileRecord)) == 1
    assert len(messages.read(root, topic)) == 4


def test_files_of_a_deleted_topic(root: Root, topic: str, stored_files: Stored) -> None:
    messages.write(root, topic, [b"v"])
    root.delete_topic(topic)
    assert (collect(root).retired_files, len(stored_files(root))) == (1, 3)
    assert collect(root, clock=later(660)).deleted_files == 3
    assert stored_files(root) == root.store.view().all(FileRecord) == []


def test_a_segment_that_names_a_file_outweighs_every_mark(root: Root, topic: str) -> None:
    """Whatever marked the file as replaced: it is read before it is deleted."""
    messages.write(root, topic, [b"v"])
    (file,) = root.store.view().all(FileRecord)
    marked = file.model_copy(update={"replaced_at": datetime.now(UTC)})
    root.store.commit(lambda _: merge.Change(puts=[marked], keys={keys.FILES: None}))
    assert collect(root, AT_ONCE, clock=later(10 * DAY_S)).deleted_files == 0
    assert messages.values(root, topic) == [b"v"]


def test_old_verdicts_are_cleared_and_young_ones_kept(root: Root, topic: str) -> None:
    for number in range(4):
        messages.write(root, topic, [str(number).encode()], transaction=batch_of("q", number))
    merge.merge(root)
    assert collect(root, clock=later(3600)).cleared_verdicts == 0
    assert len(root.store.view().all(WriteRecord)) == 5
    assert collect(root, clock=later(DAY_S + 3600)).cleared_verdicts == 4
    (verdict,) = root.store.view().all(WriteRecord)
    (file,) = root.store.view().all(FileRecord)
    assert verdict.write_id == file.write_id
    assert collect(root, AT_ONCE, clock=later(9 * DAY_S)) == CollectReport()
    assert len(messages.read(root, topic)) == 4


@pytest.mark.parametrize("damage", ["missing", "swapped"])
def test_an_unreachable_path_is_skipped_and_cleaned_when_it_returns(
    root: Root, topic: str, stored_files: Stored, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages.write(root, topic, [b"v"])
    root.delete_topic(topic)
    collect(root)
    storage = root.path / "storage"
    (storage / "0").rename(root.path / "away")
    if damage == "swapped":
        shutil.copytree(storage / "1", storage / "0")
    done = collect(root, clock=later(660))
    assert done.deleted_files == 2
    assert "Storage path 0" in done.skipped_paths[0]
    assert "skips storage path 0" in caplog.text
    if damage == "swapped":
        assert list((storage / "0").glob("segments/*/*")) != [], "nothing is deleted on a path that is another"
        shutil.rmtree(storage / "0")
    (root.path / "away").rename(storage / "0")
    assert collect(root, clock=later(700)).deleted_files == 1
    assert stored_files(root) == []


def test_a_driver_that_was_suspended_in_its_commit_for_days_writes_once(root: Root, topic: str) -> None:
    """Merging removed its files meanwhile: without a transaction only the verdict shows that the write is done."""
    write_id = messages.new_write_id()
    output = messages.stage(root, {topic: messages.make_rows([b"a"])}, write_id)
    assert attach(root.store, write_id, [output], None)
    for _ in range(3):
        messages.write(root, topic, [b"b"])
    merge.merge(root)
    collect(root, clock=later(6 * DAY_S))
    assert not attach(root.store, write_id, [output], None)
    assert messages.values(root, topic) == [b"a", b"b", b"b", b"b"]
    assert collect(root, clock=later(8 * DAY_S)).cleared_verdicts >= 1


def test_a_file_that_returns_after_its_verdict_was_cleared(root: Root, topic: str, stored_files: Stored) -> None:
    messages.write(root, topic, [b"v"])
    copy = next(root.path.glob("storage/0/segments/*/*.arrow"))
    content = copy.read_bytes()
    root.delete_topic(topic)
    collect(root)
    collect(root, clock=later(660))
    assert collect(root, AT_ONCE).cleared_verdicts == 1
    copy.write_bytes(content)
    assert collect(root) == CollectReport()
    assert collect(root, clock=later(DAY_S + 60)).deleted_files == 1
    assert stored_files(root) == []


def test_reports_about_files_that_are_gone_are_cleared(root: Root, topic: str) -> None:
    messages.write(root, topic, [b"v"])
    (file,) = root.store.view().all(FileRecord)
    for file_id in (FileId(file.file_id), FileId("0" * 32 + "-gone")):
        write_report(root.path, Finding(ReportKind.BAD_COPY, file_id, PathId(0), "rotten", 0))
    collect(root)
    assert [report.file_id for report in read_reports(root.path)] == [file.file_id]


def test_the_write_id_is_in_the_name() -> None:
    assert write_id_of("0123-4567") == "0123"


# --- a collection against a slow writer: exactly one wins ---


def test_the_collection_wins(root: Root, topic: str, stored_files: Stored) -> None:
    write_id, output = staged(root)
    collect(root, AT_ONCE)
    with pytest.raises(WriteAbortedError):
        attach(root.store, write_id, [output], None)
    assert messages.read(root, topic) == []
    assert stored_files(root) == []


def test_the_writer_wins(root: Root, topic: str, stored_files: Stored) -> None:
    write_id, output = staged(root)
    attach(root.store, write_id, [output], None)
    collect(root, AT_ONCE)
    assert messages.values(root, topic) == [b"v"]
    assert len(stored_files(root)) == 3


def test_both_at_once(root: Root, topic: str) -> None:
    """The second commit sees the first: a message is written and readable, or the writer knows that it is not."""
    rounds, outcomes = 25, []
    collector = Root.open(root.path)
    for number in range(rounds):
        write_id, output = staged(root, str(number).encode())
        start = threading.Barrier(2)

        def collecting(start: threading.Barrier = start, number: int = number) -> None:
            start.wait()
            time.sleep(0.002 * (number % 5))
            collect(collector, AT_ONCE)

        thread = threading.Thread(target=collecting)
        thread.start()
        start.wait()
        try:
            time.sleep(0.01 if number % 2 else 0)
            outcomes.append((number, attach(root.store, write_id, [output], None)))
        except WriteAbortedError:
            outcomes.append((number, False))
        thread.join()
    written = [str(number).encode() for number, committed in outcomes if committed]
    assert messages.values(root, topic) == written
    view = root.store.view()
    assert len(view.all(SegmentRecord)) == len(written)
    assert not [
        p
        for p in Path(root.path).glob("storage/*/segments/*/*")
        if write_id_of(p.name) not in {file.write_id for file in view.all(FileRecord)}
    ]
