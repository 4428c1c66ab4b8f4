"""A storage path is wiped while Spark and official clients write: nothing is lost, and all copies come back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord, PathRecord
from pulsar_on_spark.model.errors import StoragePathError
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import scrub, storage_paths
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long

SETTINGS = {"maintain_interval_s": 3600}
"""The test itself repairs, so that it knows when."""


class Load:
    """Writers in threads of their own: clients through a broker, and Spark's way beside it.

    `sent` are the values that have a receipt, `written` those whose commit returned.
    """

    def __init__(self, url: str, write: Callable[[bytes], None]) -> None:
        self.sent: list[bytes] = []
        self.written: list[bytes] = []
        self.failures: list[BaseException] = []
        self._url = url
        self._write = write
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._send, self._attach)]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until this number of further messages of each kind is durable."""
        sent, written = len(self.sent) + count, len(self.written) + min(count, 3)
        wait_until(lambda: bool(self.failures) or (len(self.sent) >= sent and len(self.written) >= written))
        assert not self.failures

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _send(self) -> None:
        client = new_client(self._url)
        producer = client.create_producer("by-clients", send_timeout_millis=0)
        number = 0
        while not self._ended.is_set():
            value = b"%d " % number + b"x" * 500
            producer.send(value)
            self.sent.append(value)
            number += 1
        client.close()

    def _attach(self) -> None:
        number = 0
        while not self._ended.is_set():
            value = b"%d" % number
            self._write(value)
            self.written.append(value)
            number += 1
            self._ended.wait(0.05)


def wipe(path: Path) -> None:
    """Everything on a disk is gone, its mount point is not. Writers make new files meanwhile."""
    path.rename(path.with_name("wiped"))
    path.mkdir()
    shutil.rmtree(path.with_name("wiped"))


def is_added(root: Root, directory: Path) -> bool:
    """Add an empty directory as storage path, unless a writer of before has just made a file there: that is removed."""
    for left in directory.iterdir():
        shutil.rmtree(left)
    try:
        return storage_paths.add(root, directory).path_id == 3
    except StoragePathError:
        return False


def wipe_under_load(root: Root, wiped: int, write: Callable[[bytes], None], rounds: int) -> None:
    directory = root.path / "storage" / str(wiped)
    with RunningBroker(root.path, SETTINGS) as broker:
        client = new_client(broker.url)
        consumer = client.subscribe("by-clients", "sub", initial_position=pulsar.InitialPosition.Earliest)
        load = Load(broker.url, write)
        try:
            load.wait_for_more(rounds)
            wait_until(lambda: any(path.copies for path in root.status().paths))
            wipe(directory)
            load.wait_for_more(rounds)
            assert root.repair().work.lost == ()
            load.wait_for_more(rounds)
            storage_paths.give_up(root, wiped)
            wait_until(lambda: is_added(root, directory), "the empty path is added again")
            load.wait_for_more(rounds)
            done = root.repair()
            assert (done.work.lost, done.lacking) == ((), 0)
            assert done.work.restored > 0
            load.wait_for_more(rounds)
        finally:
            load.stop()
        for value in load.sent:
            received = consumer.receive(WAIT_MS)
            assert received.data() == value
            consumer.acknowledge(received)
        client.close()
    assert stored(root.path, "by-clients") == load.sent
    assert messages.values(root, "by-spark") == load.written
    # The journal's last frames are sealed when their broker has ended; then no journal needs the old path.
    for _ in range(2):
        seal_closed(root, pytest.fail, grace_s=0)
    assert root.status().incarnations == ()
    done = root.repair()
    assert done.is_whole
    view = root.store.view()
    paths = root.storage_paths(view)
    for file in view.all(FileRecord):
        if file.replaced_at is None:
            assert len(set(file.copies)) == 3
            assert wiped not in file.copies
            assert all(scrub.defect(file, paths[PathId(each)]) is None for each in file.copies)
    storage_paths.retire(root, wiped)
    assert [record.state for record in root.store.view().all(PathRecord)].count("retired") == 1
    assert stored(root.path, "by-clients") == load.sent


@pytest.mark.parametrize("wiped", [1])
def test_a_path_is_wiped_under_load(tmp_path: Path, wiped: int) -> None:
    root = Root.create(tmp_path / "root")
    root.create_topic("by-spark")
    wipe_under_load(root, wiped, lambda value: _write(root, value), rounds=20)


def _write(root: Root, value: bytes) -> None:
    messages.write(root, "by-spark", [value])


@pytest.mark.soak
@pytest.mark.parametrize("wiped", [0, 1, 2])
def test_each_path_is_wiped_under_a_broker_and_spark(
    tmp_path: Path, wiped: int, request: pytest.FixtureRequest
) -> None:
    from pyspark.sql import SparkSession

    spark: SparkSession = request.getfixturevalue("spark")
    root = Root.create(tmp_path / "root")
    root.create_topic("by-spark")

    def write(value: bytes) -> None:
        frame = spark.createDataFrame([(value,)], "value BINARY")
        frame.write.format("pulsarpy").option("topic", "by-spark").mode("append").save(str(root.path))

    wipe_under_load(root, wiped, write, rounds=300)
