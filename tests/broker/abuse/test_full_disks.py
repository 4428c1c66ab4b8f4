"""Storage paths on full disks: said once each, written to again when there is room, and left for good when retired."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.metadata.records import PathRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.open_files import processes_with_open_files
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.running_broker import RunningBroker
from tests.kit.small_disks import SmallDisk
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long

DISK_MIB = 256


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[SmallDisk]]:
    with ExitStack() as mounted:
        yield [mounted.enter_context(SmallDisk(tmp_path / f"disk{number}", DISK_MIB)) for number in range(3)]


def fragments_on(disk: SmallDisk) -> int:
    return len(list(disk.at.glob("journal/*/*")))


def states(root: Root) -> list[str]:
    return [record.state for record in root.store.view().all(PathRecord)]


@pytest.mark.root
def test_the_log_of_full_disks(tmp_path: Path, disks: list[SmallDisk]) -> None:
    root = Root.create(tmp_path / "root", [disk.at for disk in disks])
    with RunningBroker(root.path) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("t", send_timeout_millis=0)
        producer.send(b"there is room")
        for disk in disks:
            disk.fill()
        outcomes: list[pulsar.Result] = []
        producer.send_async(bytes(100_000), lambda result, _: outcomes.append(result))
        wait_until(lambda: broker.said.count("still fails: ") == 3, "they are tried")
        fragments = [fragments_on(disk) for disk in disks]
        time.sleep(3.0)  # several looks of the journal, which must change nothing
        assert [fragments_on(disk) for disk in disks] == fragments
        assert outcomes == []
        for disk in disks:
            disk.make_room()
        wait_until(lambda: outcomes == [pulsar.Result.Ok], "publishing continues")
        wait_until(lambda: states(root) == ["writable"] * 3, "all are well again")
        said = broker.said
        client.close()
    assert [said.count(words) for words in ("fewer paths left", "stops using", "still fails: ")] == [1, 3, 3]
    assert said.count("is healthy and writable again") <= 3
    assert stored(root.path, "t") == [b"there is room", bytes(100_000)]


@pytest.mark.root
@pytest.mark.soak
def test_a_path_that_was_full_is_retired_and_unmounted_under_its_broker(tmp_path: Path, disks: list[SmallDisk]) -> None:
    root = Root.create(tmp_path / "root", [disk.at for disk in disks])
    with RunningBroker(root.path) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("t", send_timeout_millis=0)
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)

        def send(megabytes: float) -> None:
            for _ in range(int(megabytes * 10)):
                producer.send(os.urandom(100_000))

        for _ in range(2):
            send(1)
            disks[2].fill()
            wait_until(lambda: send(0.1) or states(root)[2] == "read-only", "it is given up")  # type: ignore[func-returns-value]
            disks[2].make_room()
            wait_until(lambda: states(root)[2] == "writable", "it is well again")
            wait_until(lambda: send(0.1) or is_written(disks[2]), "it is written to again")  # type: ignore[func-returns-value]
        httpx.get(f"{broker.web_url}/admin/v2/persistent/public/default/t/stats").raise_for_status()
        storage_paths.add(root, tmp_path / "extra")
        storage_paths.drain(root, 2)

        def is_retired() -> bool:
            send(0.5)
            consumer.acknowledge_cumulative(consumer.receive(WAIT_MS))
            repair(root)
            try:
                storage_paths.retire(root, 2)
            except InvalidArgumentError:
                return False
            return True

        wait_until(is_retired, f"retired: {broker.said}")
        assert processes_on(disks[2]) == {}
        disks[2].unmount()
        send(1)
        client.close()


def processes_on(disk: SmallDisk) -> dict[int, int]:
    return dict(processes_with_open_files(disk.at))


def is_written(disk: SmallDisk) -> bool:
    return bool(processes_on(disk))
