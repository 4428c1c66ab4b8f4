"""Official clients on several brokers of one root, directly and through a proxy, while bundles move: `make flows`.

The scenarios of Go and Java are those of one broker (`tests/broker/clients`); bundles move during `flow` only, because
the others check that nothing comes twice. In `again`, segments move to a cold path and to histories, and brokers are
killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord, HistoryRecord, SegmentRecord
from pulsar_on_spark.model.ids import PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.broker.clients.conftest import new_client
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.client_programs import CLIENTS, build_go, compile_java
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long

BROKERS = int(os.environ.get("FLOW_BROKERS", "3"))
FLOW_S = int(os.environ.get("FLOW_SECONDS", "20"))
MOVE_EVERY_S = float(os.environ.get("FLOW_MOVE_EVERY", "2"))
PATIENCE_S = 60
LIMIT_S = 900 + FLOW_S
TOPICS = 8
KILL_EVERY_S = 6.0
AGAIN_MESSAGES = 500
"""Messages of the scenario `again`, in all clients."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    root = tmp_path_factory.mktemp("flows") / "root"
    with BrokerCluster(root, count=BROKERS) as brokers:
        for prefix in ("go", "java", "via-go", "via-j"):
            Root.open(root).create_topic(f"{prefix}-parts", partitions=3)
        yield brokers


@pytest.fixture(scope="module")
def proxy(cluster: BrokerCluster) -> Iterator[RunningBroker]:
    with RunningBroker(cluster.brokers[0].root, command="proxy", options=["--service-port", "0"]) as running:
        yield running


@contextmanager
def repeating(act: Callable[[int], object], every_s: float) -> Iterator[list[int]]:
    """Call a function with the numbers from 1 on, one at each interval; yields the list of these numbers."""
    ended, calls = threading.Event(), list[int]()

    def repeat() -> None:
        while not ended.wait(every_s):
            calls.append(len(calls) + 1)
            act(calls[-1])

    with ThreadPoolExecutor(1) as threads:
        repeated = threads.submit(repeat)
        try:
            yield calls
        finally:
            ended.set()
        repeated.result()


@contextmanager
def moving(cluster: BrokerCluster) -> Iterator[None]:
    """Transfer a bundle at each interval, and unload all of them at each fourth one."""
    with repeating(lambda number: (cluster.move if number % 4 == 0 else cluster.transfer)(), MOVE_EVERY_S) as moves:
        yield
    assert len(moves) >= FLOW_S / MOVE_EVERY_S / 4, "bundles have moved"


def run(folder: Path, command: Sequence[str | Path], expected: int, length_s: int = 3) -> None:
    """Run a client's program; `length_s` is the length of scenarios that go on while something else happens."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"TLS_TRUST_CERTS": "", "FLOW_SECONDS": str(length_s)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
    )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    assert done.returncode == 0, "\n".join(failed) or done.stdout[-5_000:]
    assert sum(line.startswith("passed ") for line in lines) >= expected, "not all scenarios were run"


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = build_go(".", tmp_path_factory.mktemp("go") / "scenarios")
    if program is None:
        pytest.skip("needs Go")
    return program


@pytest.fixture(scope="module")
def java_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = compile_java(tmp_path_factory.mktemp("java") / "java")
    if project is None:
        pytest.skip("needs Maven")
    return project


@pytest.fixture(scope="module")
def rust_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cargo") is None or shutil.which("protoc") is None:
        pytest.skip("needs Rust, and protoc of Debian's protobuf-compiler")
    folder = tmp_path_factory.mktemp("rust")
    command = ["cargo", "build", "--locked", "--target-dir", folder]
    subprocess.run(command, cwd=CLIENTS / "rust", check=True, timeout=LIMIT_S)
    return folder / "debug" / "flow"


def java(url: str, cluster: BrokerCluster, prefix: str, *scenarios: str) -> list[str]:
    arguments = " ".join([url, cluster.brokers[0].web_url, prefix, *scenarios])
    return ["mvn", "-q", "exec:java", "-Dexec.mainClass=clients.Scenarios", f"-Dexec.args={arguments}"]


def test_the_go_client_does_all_scenarios_on_several_brokers(cluster: BrokerCluster, go_program: Path) -> None:
    run(go_program.parent, [go_program, cluster.url, "go"], 20)


def test_the_go_client_does_all_scenarios_through_a_proxy(proxy: RunningBroker, go_program: Path) -> None:
    run(go_program.parent, [go_program, proxy.url, "via-go"], 20)


def test_the_go_client_loses_nothing_while_bundles_move(cluster: BrokerCluster, go_program: Path) -> None:
    with moving(cluster):
        run(go_program.parent, [go_program, cluster.url, "moving-go", "flow"], 1, FLOW_S)


def test_the_java_client_does_all_scenarios_on_several_brokers(cluster: BrokerCluster, java_project: Path) -> None:
    run(java_project, java(cluster.url, cluster, "java"), 20)


def test_the_java_client_does_all_scenarios_through_a_proxy(
    cluster: BrokerCluster, proxy: RunningBroker, java_project: Path
) -> None:
    run(java_project, java(proxy.url, cluster, "via-j"), 20)


def test_the_java_client_loses_nothing_while_bundles_move(cluster: BrokerCluster, java_project: Path) -> None:
    with moving(cluster):
        run(java_project, java(cluster.url, cluster, "moving-java", "testFlow"), 1, FLOW_S)


@pytest.mark.soak
def test_the_rust_client_loses_nothing_while_bundles_move(cluster: BrokerCluster, rust_program: Path) -> None:
    """The client gets the URL of one broker only."""
    with moving(cluster):
        run(rust_program.parent, [rust_program, cluster.brokers[0].url, "moving-rust", str(FLOW_S)], 1)


def test_the_python_client_loses_nothing_while_bundles_move(cluster: BrokerCluster) -> None:
    """It is the C++ client: one process has a flow on each topic."""
    client = new_client(cluster.url, timeout_s=PATIENCE_S)
    ended = threading.Event()
    with moving(cluster), ThreadPoolExecutor(TOPICS) as threads:
        flows = [threads.submit(flow, client, f"python-{number}", ended) for number in range(TOPICS)]
        ended.wait(FLOW_S)
        ended.set()
        assert all(flown.result() > 0 for flown in flows)
    client.close()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Two brokers that seal, merge, build histories and offload all the time."""
    folder = tmp_path_factory.mktemp("archive")
    root = Root.create(folder / "root")
    storage_paths.add(root, folder / "cold", "archive", role="cold")
    at_once = {"managedLedgerOffloadThresholdInBytes": 0, "managedLedgerOffloadDeletionLagInMillis": 0}
    set_namespace_policies(root, "public/default", {"offload_policies": at_once, "history": {"enabled": True}})
    settings = {
        "maintain_interval_s": 1,
        "seal_within_s": 1,
        "managed_ledger_max_entries_per_ledger": 20,
        "broker_deduplication_enabled": True,  # what a client sends again after a kill is stored once
    }
    with BrokerCluster(root.path, settings, count=2) as brokers:
        yield brokers


@contextmanager
def storing_elsewhere(archive: BrokerCluster, topic: str) -> Iterator[None]:
    """Kill a broker at times; at the end, a topic's messages are in its history, and files on the cold path only."""
    with repeating(lambda _: archive.kill(), KILL_EVERY_S):
        yield
    root = Root.open(archive.brokers[0].root)
    topic_id = catalog.require_topic(root.store.view(), TopicName.parse(topic)).topic_id

    def is_elsewhere() -> bool:
        view = root.store.view()
        files = {segment.file_id for segment in view.all(SegmentRecord, topic_id)}
        moved = {file.file_id for file in view.all(FileRecord) if file.copies == (PathId(3),)}
        record = view.get(HistoryRecord, topic_id)
        return bool(files & moved) and record is not None and record.rows == AGAIN_MESSAGES

    wait_until(is_elsewhere, f"the segments of {topic} are moved and built", limit_s=PATIENCE_S)


def test_the_go_client_reads_the_same_while_segments_move(archive: BrokerCluster, go_program: Path) -> None:
    with storing_elsewhere(archive, "go-again"):
        run(go_program.parent, [go_program, archive.url, "go", "again"], 1, FLOW_S)


def test_the_java_client_reads_the_same_while_segments_move(archive: BrokerCluster, java_project: Path) -> None:
    with storing_elsewhere(archive, "java-testAgain"):
        run(java_project, java(archive.url, archive, "java", "testAgain"), 1, FLOW_S)


def test_the_python_client_reads_the_same_while_segments_move(archive: BrokerCluster) -> None:
    client = new_client(archive.url, timeout_s=PATIENCE_S)
    producer = client.create_producer("python-again", batching_max_messages=10)
    for number in range(AGAIN_MESSAGES):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()
    first: list[bytes] = []
    with storing_elsewhere(archive, "python-again"):
        end_s = time.monotonic() + FLOW_S
        while not first or time.monotonic() < end_s:
            reader = client.create_reader("python-again", pulsar.MessageId.earliest)
            read = [reader.read_next(PATIENCE_S * 1000) for _ in range(AGAIN_MESSAGES)]
            reader.close()
            assert [message.data() for message in read] == [b"%d" % number for number in range(AGAIN_MESSAGES)]
            ids = [message.message_id().serialize() for message in read]
            first = first or ids
            assert ids == first
    client.close()


def flow(client: pulsar.Client, topic: str, ended: threading.Event) -> int:
    """Publish and consume until told to stop, and return the number of messages."""
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    sent = received = 0
    while not ended.is_set():
        for number in range(sent, sent + 10):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        sent += 10
        while received < sent:
            message = consumer.receive(PATIENCE_S * 1000)
            number = int(message.data())
            assert number <= received, f"{number} of {topic} came instead of {received}"
            received = max(received, number + 1)
            consumer.acknowledge(message)
    return sent
