"""Offloading through a running broker: admin API, thresholds, clients that read meanwhile, stats and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

SETTINGS = {"maintain_interval_s": 1, "seal_within_s": 1, "managed_ledger_max_entries_per_ledger": 5}
VALUES = [b"%d" % number + b"." * 200 for number in range(20)]


@pytest.fixture(scope="module")
def cold_broker(memory_folder: Path) -> Iterator[RunningBroker]:
    """A broker whose housekeeping runs each second, on a root with a cold path."""
    with RunningBroker(with_cold_path(memory_folder / "cold"), SETTINGS) as running:
        yield running


@pytest.fixture
def quiet_broker(memory_path: Path) -> Iterator[RunningBroker]:
    """A broker whose housekeeping does not run during a test: it would merge the files that a request moves."""
    with RunningBroker(with_cold_path(memory_path), SETTINGS | {"maintain_interval_s": 600}) as running:
        yield running


def with_cold_path(folder: Path) -> Path:
    root = Root.create(folder / "root")
    storage_paths.add(root, folder / "cold-path", "archive", role="cold")
    return root.path


def admin(broker: RunningBroker) -> httpx.Client:
    return httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=WAIT_MS / 1000)


@pytest.fixture
def web(cold_broker: RunningBroker) -> Iterator[httpx.Client]:
    with admin(cold_broker) as made:
        yield made


def written(broker: RunningBroker, topic: str) -> list[pulsar.MessageId]:
    """Write Spark's way and a client's way, so that both kinds of segments move; return the ids in order."""
    root = Root.open(str(broker.root))
    root.create_topic(topic)
    for value in VALUES[:10]:
        messages.write(root, topic, [value])
    client = new_client(broker.url)
    producer = client.create_producer(topic, batching_enabled=False)
    for value in VALUES[10:]:
        producer.send(value)
    client.close()
    return ids_of(broker, topic)


def ids_of(broker: RunningBroker, topic: str) -> list[pulsar.MessageId]:
    client = new_client(broker.url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = [reader.read_next(WAIT_MS) for _ in VALUES]
    client.close()
    assert [message.data() for message in read] == VALUES
    return [message.message_id() for message in read]


def ended(web: httpx.Client, path: str) -> dict[str, Any]:
    """Wait for the end of an offload; return its status."""

    def status() -> dict[str, Any]:
        found: dict[str, Any] = web.get(f"{path}/offload").json()
        return found

    wait_until(lambda: status()["status"] != "RUNNING", f"the offload of {path} has ended", limit_s=WAIT_MS / 1000)
    return status()


def test_a_requested_offload(quiet_broker: RunningBroker) -> None:
    before, web = written(quiet_broker, "asked"), admin(quiet_broker)
    path = "/persistent/public/default/asked"
    nothing = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1}
    assert web.get(f"{path}/offload").json() == {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": nothing,
    }
    fifth = before[5]
    asked = web.put(f"{path}/offload", json={"ledgerId": fifth.ledger_id(), "entryId": fifth.entry_id()})
    assert asked.status_code == 204
    busy = web.put(f"{path}/offload", json={"ledgerId": 1, "entryId": 0})
    assert (busy.status_code, "already" in busy.json()["reason"]) == (409, True)
    status = ended(web, path)
    assert (status["status"], status["lastError"]) == ("SUCCESS", "")
    first = status["firstUnoffloadedMessage"]
    assert (first["ledgerId"], first["entryId"]) == (fifth.ledger_id(), fifth.entry_id())
    stats = web.get(f"{path}/stats").json()
    assert stats["offloadedStorageSize"] == sum(map(len, VALUES[:5]))
    assert stats["lastOffloadLedgerId"] == fifth.ledger_id()
    assert stats["lastOffloadSuccessTimeStamp"] > 1_700_000_000_000

    everything = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
    web.put(f"{path}/offload", json=everything)
    assert ended(web, path)["status"] == "SUCCESS"
    assert web.get(f"{path}/internalStats").json()["ledgers"][0]["offloaded"]
    assert web.get(f"{path}/internal-info").json()["ledgers"][0]["offloaded"]
    assert [str(id_) for id_ in ids_of(quiet_broker, "asked")] == [str(id_) for id_ in before]
    metrics = httpx.get(f"{quiet_broker.web_url}/metrics", timeout=WAIT_MS / 1000).text
    assert "pulsar_storage_offloaded_size{" in metrics
    assert "pulsarpy_segment_files_offloaded{" in metrics
    web.close()


def test_refused_requests(cold_broker: RunningBroker, web: httpx.Client) -> None:
    Root.open(str(cold_broker.root)).create_topic("parts", partitions=2)
    for path, body, code in (
        ("/persistent/public/default/absent", {"ledgerId": 1, "entryId": 1}, 404),
        ("/persistent/public/default/parts", {"ledgerId": 1, "entryId": 1}, 404),
        ("/persistent/public/default/parts-partition-0", {"ledgerId": 2**63, "entryId": 1}, 400),
        ("/persistent/public/default/parts-partition-0", {"ledgerId": 1}, 400),
    ):
        assert web.put(f"{path}/offload", json=body).status_code == code, (path, body)
    assert web.get("/persistent/public/default/parts/offload").status_code == 404


def test_thresholds_are_followed_by_housekeeping(
    cold_broker: RunningBroker, web: httpx.Client, memory_folder: Path
) -> None:
    """With a path that is added while the broker and a consumer run."""
    before = written(cold_broker, "by-itself")
    client = new_client(cold_broker.url)
    consumer = client.subscribe(
        "by-itself", "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
    )
    received = [consumer.receive(WAIT_MS)]
    late = storage_paths.add(Root.open(str(cold_broker.root)), memory_folder / "late", "late", role="cold").path_id
    policy = {
        "managedLedgerOffloadDriver": "late",
        "managedLedgerOffloadThresholdInBytes": 0,
        "managedLedgerOffloadDeletionLagInMillis": 0,
    }
    assert web.post("/persistent/public/default/by-itself/offloadPolicies", json=policy).status_code == 204

    def is_only_cold() -> bool:
        files = Root.open(str(cold_broker.root)).store.view().all(FileRecord)
        return any(file.copies == (late,) for file in files if file.replaced_at is None)

    wait_until(is_only_cold, "a file has a cold copy only", limit_s=WAIT_MS / 1000)
    received += [consumer.receive(WAIT_MS) for _ in VALUES[1:]]
    assert [message.data() for message in received] == VALUES
    for message in received:
        consumer.acknowledge(message)
    consumer.seek(before[2])
    assert consumer.receive(WAIT_MS).data() in VALUES[2:4]
    client.close()
    assert [str(id_) for id_ in ids_of(cold_broker, "by-itself")] == [str(id_) for id_ in before]


def test_the_settings_of_a_broker_are_the_default(memory_path: Path) -> None:
    defaults = {
        "managed_ledger_offload_driver": "archive",
        "managed_ledger_offload_auto_trigger_size_threshold_bytes": 0,
        "managed_ledger_offload_deletion_lag_ms": 0,
    }
    root = with_cold_path(memory_path)
    with RunningBroker(root, SETTINGS | defaults) as broker:
        before = written(broker, "by-default")

        def is_only_cold() -> bool:
            files = Root.open(root).store.view().all(FileRecord)
            return any(file.copies == (3,) for file in files if file.replaced_at is None)

        wait_until(is_only_cold, "a file has a cold copy only", limit_s=WAIT_MS / 1000)
        assert [str(id_) for id_ in ids_of(broker, "by-default")] == [str(id_) for id_ in before]
