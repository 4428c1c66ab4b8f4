"""A backup is a root: whole, closed, independent of the one it was made of, also if that was in use."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, PathRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, StorageError
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.backup import snapshot
from pulsar_on_spark.topic.maintenance.backup.backup import back_up
from tests.kit import messages
from tests.kit.running_broker import RunningBroker

MESSAGES = 2_000


def test_a_backup_has_its_own_storage_paths(tmp_path: Path) -> None:
    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(3)])
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    done = back_up(root, tmp_path / "backup")
    assert (done.files, done.check.good, done.check.is_good) == (1, 3, True)
    messages.write(root, "t", [b"2"])
    for number in range(3):
        shutil.rmtree(tmp_path / f"disk{number}")
    copy = Root.open(tmp_path / "backup")
    assert messages.values(copy, "t") == [b"1"]
    messages.write(copy, "t", [b"3"])
    moved = (tmp_path / "backup").rename(tmp_path / "elsewhere")
    assert messages.values(Root.open(moved), "t") == [b"1", b"3"]


def test_bad_copies_are_restored_in_the_backup(root: Root, tmp_path: Path) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    messages.write(root, "t", [b"2"])
    copies = sorted((root.path / "storage" / "0").glob("segments/*/*.arrow"))
    copies[0].unlink()
    copies[1].write_bytes(b"?")
    done = back_up(root, tmp_path / "backup")
    assert (done.check.good, done.check.is_good) == (6, True)


def test_a_backup_reports_lost_entries_and_has_the_rest(root: Root, tmp_path: Path) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    messages.write(root, "t", [b"2"])
    (lost, _) = root.store.view().all(FileRecord)
    for copy in root.path.glob(f"storage/*/segments/*/{lost.file_id}.arrow"):
        copy.unlink()
    done = back_up(root, tmp_path / "backup")
    assert (done.check.good, done.check.missing) == (3, 3)
    assert len(messages.read(Root.open(tmp_path / "backup"), "t", fail_on_data_loss=False)) == 1


def test_a_backup_whose_disk_is_full_fails(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"])

    def fill_up(source: Path, target: Path) -> None:
        if target.suffix == ".arrow":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        copy_file(source, target)

    copy_file = snapshot.copy_file
    monkeypatch.setattr(snapshot, "copy_file", fill_up)
    with pytest.raises(StorageError, match="make room, and try again"):
        back_up(root, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_copy_on_a_broken_disk_is_left_out(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    messages.write(root, "t", [b"2"])
    (bad, _) = root.store.view().all(FileRecord)

    def broken(source: Path, target: Path) -> None:
        if bad.file_id in source.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        copy_file(source, target)

    copy_file = snapshot.copy_file
    monkeypatch.setattr(snapshot, "copy_file", broken)
    done = back_up(root, tmp_path / "backup")
    assert (done.check.good, done.check.missing) == (3, 3)


def test_a_lost_path_does_not_lead_to_the_root(tmp_path: Path) -> None:
    from pulsar_on_spark.topic.maintenance.repair import storage_paths

    root = Root.create(tmp_path / "root", [tmp_path / f"disk{number}" for number in range(4)])
    root.create_topic("t")
    messages.write(root, "t", [b"1"])
    storage_paths.give_up(root, 3)
    back_up(root, tmp_path / "backup")
    records = Root.open(tmp_path / "backup").store.view().all(PathRecord)
    assert [record.uri for record in records] == [f"storage/{number}" for number in range(4)]


def test_a_target_must_be_free(root: Root, tmp_path: Path) -> None:
    for target in (tmp_path, root.path / "backup"):
        with pytest.raises(InvalidArgumentError):
            back_up(root, target)


def test_a_broker_that_is_published_to_is_backed_up(root: Root, tmp_path: Path) -> None:
    """Messages with a receipt from before the backup are in it; clients of the copy continue at the cursor."""
    with RunningBroker(root.path) as broker:
        client = pulsar.Client(broker.url)
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer("t", block_if_queue_full=True)
        for number in range(MESSAGES):
            producer.send_async(str(number).encode(), None)
        producer.flush()
        for _ in range(MESSAGES // 2):
            consumer.acknowledge(consumer.receive(30_000))
        is_over = threading.Event()

        def publish() -> None:
            number = MESSAGES
            while not is_over.is_set():
                producer.send(str(number).encode())
                number += 1

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            done = back_up(root, tmp_path / "backup")
        finally:
            is_over.set()
            publisher.join()
        client.close()
    assert done.check.is_good
    copy = Root.open(tmp_path / "backup")
    assert {record.state for record in copy.store.view().all(IncarnationRecord)} <= {"CLOSED"}
    found = [int(value or b"") for value in messages.values(copy, "t")]
    assert found == list(range(len(found)))
    assert len(found) >= MESSAGES
    with RunningBroker(copy.path) as broker:
        client = pulsar.Client(broker.url)
        client.create_producer("t").send(b"after")
        consumer = client.subscribe("t", "s")
        got = []
        while not got or got[-1] != b"after":
            message = consumer.receive(30_000)
            got.append(message.data())
        client.close()
    assert got[-2] == str(len(found) - 1).encode()
    assert int(got[0]) <= MESSAGES // 2, "nothing that was not acknowledged is passed over"
    assert [int(each) for each in got[:-1]] == list(range(int(got[0]), len(found)))


WRITER = """
import sys
from tests.kit import messages
from pulsar_on_spark.root import Root

root = Root.open(sys.argv[1])
number = 0
while True:
    messages.write(root, "t", [str(number).encode()])
    number += 1
    print(number, flush=True)
    if number % 5 == 0:
        root.maintain()
"""


def test_a_root_that_is_written_to_and_merged_is_backed_up(root: Root, tmp_path: Path) -> None:
    root.create_topic("t")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root.path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        for _ in range(8):
            before = int(writer.stdout.readline())
        done = back_up(root, tmp_path / "backup")
    finally:
        writer.kill()
        writer.wait()
    assert done.check.is_good
    found = [int(value or b"") for value in messages.values(Root.open(tmp_path / "backup"), "t")]
    assert found == list(range(len(found)))
    assert len(found) >= before
