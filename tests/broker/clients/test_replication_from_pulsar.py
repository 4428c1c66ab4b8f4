"""A real Apache Pulsar replicates to a broker with deduplication: `make replication` starts both, and needs Maven."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.broker.clients.conftest import new_client
from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

HOUSE = Path(__file__).parents[3]
PEER = HOUSE / "bench" / "peers" / "pulsar" / "run"
WORK = HOUSE / "conformance-work" / "replication"
START_S = 900
"""The first start resolves the JARs."""
ARRIVAL_S = 300
"""Time limit for the arrival of entries: after a kill the replicator retries with a delay."""
NAMESPACE = "public/replicated"

pytestmark = pytest.mark.peer


class Peer:
    """The real Pulsar, a cluster of the name `peer`."""

    def __init__(self, work: Path) -> None:
        port, web_port = free_port(), free_port()
        self.url = f"pulsar://127.0.0.1:{port}"
        self.admin = httpx.Client(base_url=f"http://127.0.0.1:{web_port}/admin/v2", timeout=60)
        settings = work / "settings.conf"
        given = {
            "brokerServicePort": port,
            "webServicePort": web_port,
            "clusterName": "peer",
            "maxMessageSize": 256 << 10,  # so that chunks are small
        }
        settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self._log = work / "pulsar.log"
        with self._log.open("wb") as log:
            command = [str(PEER), str(work), "1", str(settings)]
            environment = {"PEER_HEAP": "1g"} | os.environ
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait(self) -> None:
        """Until it serves."""

        def serves() -> bool:
            assert self._process.poll() is None, f"Pulsar did not start (Java 17 and Maven are needed): {self._log}"
            try:
                return self.admin.get("/namespaces/public/default").status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        wait_until(serves, "Pulsar serves", limit_s=START_S)

    def stop(self) -> None:
        """The process and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        subprocess.run(["rm", "-rf", str(self._log.parent / "data")], check=True)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    WORK.mkdir(parents=True, exist_ok=True)
    started = Peer(WORK)
    try:
        started.wait()
        yield started
    finally:
        started.stop()


class Ours:
    """A broker that keeps its ports, and is killed and started again."""

    def __init__(self, root: Path) -> None:
        port, web_port = free_port(), free_port()
        self._root = root
        self._settings = {
            "broker_service_port": port,
            "web_service_port": web_port,
            "cluster_name": "ours",
            "broker_deduplication_enabled": "true",
        }
        self.start()

    def start(self) -> None:
        """Start it, again."""
        self.broker = RunningBroker(self._root, self._settings)
        self.admin = httpx.Client(base_url=f"{self.broker.web_url}/admin/v2", timeout=60)

    def wait_for(self, topic: str, count: int) -> None:
        """Wait until a topic holds this many messages."""

        def has_come() -> bool:
            found = self.admin.get(f"/persistent/{NAMESPACE}/{topic}/stats")
            return found.status_code == httpx.codes.OK and found.json()["storedMessages"] >= count

        wait_until(has_come, f"{count} messages of {topic}", limit_s=ARRIVAL_S)

    def stored(self, topic: str) -> list[bytes]:
        """All values of a topic, in order."""
        client = new_client(self.broker.url)
        reader = client.create_reader(f"persistent://{NAMESPACE}/{topic}", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        client.close()
        return found


@pytest.fixture(scope="module")
def ours(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    """A broker that receives the messages that are published to the namespace at the peer."""
    started = Ours(tmp_path_factory.mktemp("ours") / "root")
    try:
        started.admin.put(f"/namespaces/{NAMESPACE}").raise_for_status()
        urls = {"serviceUrl": started.broker.web_url, "brokerServiceUrl": started.broker.url}
        peer.admin.put("/clusters/ours", json=urls).raise_for_status()
        tenant = {"adminRoles": [], "allowedClusters": ["peer", "ours"]}
        peer.admin.post("/tenants/public", json=tenant).raise_for_status()
        peer.admin.put(f"/namespaces/{NAMESPACE}").raise_for_status()
        peer.admin.post(f"/namespaces/{NAMESPACE}/replication", json=["peer", "ours"]).raise_for_status()
        yield started
    finally:
        started.broker.stop()


def test_messages_of_two_producers_are_complete_after_a_reload_and_kills(peer: Peer, ours: Ours) -> None:
    client = new_client(peer.url)
    topic = f"persistent://{NAMESPACE}/orders"
    producers = {name: client.create_producer(topic, name, batching_enabled=False) for name in "pq"}
    sent: list[bytes] = []

    def send(count: int) -> None:
        for _ in range(count):
            for name, producer in producers.items():
                value = f"{name}{len(sent) // 2}".encode()
                producer.send(value)
                sent.append(value)

    send(10)
    ours.wait_for("orders", 20)
    assert ours.stored("orders") == sent
    ours.admin.put(f"/persistent/{NAMESPACE}/orders/unload").raise_for_status()
    send(10)
    ours.wait_for("orders", 40)
    for kill in range(3):
        send(10)
        ours.wait_for("orders", 40 + 60 * kill + 10)  # in the middle of what comes
        ours.broker.kill()
        send(20)
        ours.start()
        ours.wait_for("orders", len(sent))
    assert ours.stored("orders") == sent
    wait_until(lambda: backlog(peer, "orders") == 0, "an empty backlog at the peer", limit_s=ARRIVAL_S)
    client.close()


def test_batches_and_large_messages_are_replicated_completely(peer: Peer, ours: Ours) -> None:
    client = new_client(peer.url)
    topic = f"persistent://{NAMESPACE}/batches"
    producer = client.create_producer(topic, "p", batching_enabled=True, batching_max_publish_delay_ms=100)
    values = [b"%d" % number for number in range(500)]
    for value in values:
        producer.send_async(value, lambda result, _: None)
    producer.flush()
    large = bytes(range(256)) * (2 << 10)
    client.create_producer(topic, "q", chunking_enabled=True, batching_enabled=False).send(large)
    ours.wait_for("batches", 503)  # the large one has three chunks
    assert ours.stored("batches") == [*values, large]
    client.close()


def test_a_partitioned_topic_is_made_with_its_partitions(peer: Peer, ours: Ours) -> None:
    peer.admin.put(f"/persistent/{NAMESPACE}/parts/partitions", json=3).raise_for_status()
    client = new_client(peer.url)
    producer = client.create_producer(f"persistent://{NAMESPACE}/parts")
    for number in range(12):
        producer.send(b"%d" % number, partition_key=f"{number}")
    for part in range(3):
        at_peer = peer.admin.get(f"/persistent/{NAMESPACE}/parts-partition-{part}/stats").json()["msgInCounter"]
        ours.wait_for(f"parts-partition-{part}", at_peer)
    found = [value for part in range(3) for value in ours.stored(f"parts-partition-{part}")]
    assert sorted(found, key=int) == [b"%d" % number for number in range(12)]
    assert ours.admin.get(f"/persistent/{NAMESPACE}/parts/partitions").json() == {"partitions": 3}
    client.close()


def backlog(peer: Peer, topic: str) -> int:
    replication = peer.admin.get(f"/persistent/{NAMESPACE}/{topic}/stats").json()["replication"]
    return int(replication["ours"]["replicationBacklog"])
