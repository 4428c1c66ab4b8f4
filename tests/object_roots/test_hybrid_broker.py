"""A broker with its journal on its own disks and everything else on an S3 server."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulsar_on_spark.datasource.stream_plan import cut_off
from pulsar_on_spark.metadata.records import IncarnationRecord
from pulsar_on_spark.model.errors import CopiesUnreachableError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path import tail as tail_module
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from pulsar_on_spark.topic.maintenance.repair.repairing import repair
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.incarnation.recover_dead import recover_dead
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import SlotRange, TopicOffset
from tests.kit import messages
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long

QUICK = {"seal_within_s": 0.5}


@pytest.fixture
def root(bucket: str, memory_path: Path) -> Root:
    made = Root.create(f"{bucket}/root")
    storage_paths.add(made, memory_path / "journal", role="journal")
    return made


def send(url: str, topic: str, values: list[bytes]) -> None:
    client = pulsar.Client(url)
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value)
    client.close()


def receive(url: str, topic: str, count: int) -> list[bytes]:
    client = pulsar.Client(url)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    received = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=60_000)
        consumer.acknowledge(message)
        received.append(message.data())
    client.close()
    return received


def readable(root: Root) -> list[bytes | None]:
    """The values that a reader on this host gets, from segments and journals."""
    with closing(Tail(root)) as tail:
        parts = catalog.parts(root.store.view(), catalog.require_topic(root.store.view(), TopicName.parse("t")))
        return [message.value for message in messages.read(root, "t", view=tail.read_view(parts))]


def test_clients_are_served_and_other_hosts_read_what_is_sealed(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"%d" % number for number in range(200)]
    with RunningBroker(str(root.place), {"seal_within_s": 3600}) as broker:
        send(broker.url, "t", values)
        assert receive(broker.url, "t", 200) == values
        assert readable(root) == values, "this host reads the journal"
        with monkeypatch.context() as other_host:
            other_host.setattr(socket, "gethostname", lambda: "elsewhere")
            assert readable(Root.open(root.place)) == []
            assert repair(root).is_whole
            assert [path.condition.value for path in root.status().paths] == ["well", "elsewhere"]
    assert [path.state for path in root.status().paths] == ["writable", "writable"]
    root.maintain()
    with monkeypatch.context() as other_host:
        other_host.setattr(socket, "gethostname", lambda: "elsewhere")
        assert readable(Root.open(root.place)) == values


def test_what_another_host_cannot_read_is_never_lost(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was planned on the broker's host, and a position that was read there."""
    values = [b"%d" % number for number in range(20)]
    with RunningBroker(str(root.place), {"seal_within_s": 3600}) as broker, closing(Tail(root)) as tail:
        send(broker.url, "t", values)
        parts = catalog.parts(root.store.view(), catalog.require_topic(root.store.view(), TopicName.parse("t")))
        view = tail.read_view(parts)
        end = chain.read_limit(view, parts[0].topic_id)
        plan = chain.plan_range(view, parts[0].name, parts[0].topic_id, parts[0].partition, EARLIEST, end)
        assert plan.rows == 20
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        monkeypatch.setattr(tail_module, "REACH_S", 0.5)
        for is_strict in (True, False):
            reader = SliceReader(root.place, root.storage_paths(view), ("value",), is_strict)
            with pytest.raises(CopiesUnreachableError, match="is read once it is sealed"):
                list(reader.read(plan.slices[0]))
        with closing(Tail(root)) as elsewhere:
            with pytest.raises(CopiesUnreachableError, match="is read once it is sealed"):
                elsewhere.read_view(parts, reach={parts[0].topic_id: end})
            hidden = elsewhere.read_view(parts)
        read = {parts[0].name: TopicOffset(parts[0].topic_id, (SlotRange((0,), 0, end, end),))}
        assert cut_off(hidden, parts, read) == []
        assert cut_off(root.store.view(), parts, read) != []
        assert recover_dead(root)[0].outcome != "recovered"
        assert root.store.view().all(IncarnationRecord)[0].state == "OPEN"


def test_a_brokers_requests_are_counted_by_process(root: Root) -> None:
    with RunningBroker(str(root.place), QUICK) as broker:
        send(broker.url, "t", [b"v"])
        counts: dict[str, float] = {}

        def has_sealed() -> bool:
            page = httpx.get(f"{broker.web_url}/metrics").text
            counts.clear()
            for family in text_string_to_metric_families(page):
                if family.name == "pulsarpy_object_requests":
                    for sample in family.samples:
                        counts["{process} {operation} {result}".format(**sample.labels)] = sample.value
            # The sealer uploads the segment, and then commits it.
            return counts.get("sealer upload ok", 0) >= 1 and counts.get("sealer put ok", 0) >= 2

        wait_until(has_sealed)
        assert counts["broker put ok"] >= 2, "the broker has committed"
        assert {key for key in counts if key.endswith(("failed", "refused"))} == set()


def test_what_was_acknowledged_is_sealed_soon(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"%d" % number for number in range(50)]
    with RunningBroker(str(root.place), QUICK) as broker:
        send(broker.url, "t", values)
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        wait_until(lambda: readable(Root.open(root.place)) == values, "all is sealed")


def test_a_broker_that_is_killed_loses_nothing(root: Root) -> None:
    sent: list[bytes] = []
    for round_ in range(3):
        broker = RunningBroker(str(root.place), QUICK)
        values = [b"%d-%d" % (round_, number) for number in range(100)]
        send(broker.url, "t", values)
        sent += values
        broker.kill()
    with RunningBroker(str(root.place), QUICK) as broker:
        assert receive(broker.url, "t", len(sent)) == sent
    assert readable(root) == sent


def test_a_second_broker_is_refused(root: Root, memory_path: Path) -> None:
    with RunningBroker(str(root.place), QUICK):
        with pytest.raises(RuntimeError, match="is served by another broker already"):
            RunningBroker(str(root.place), QUICK)
        # As on another host, where the first one's lock cannot be seen.
        (memory_path / "journal" / "broker.lock").rename(memory_path / "journal" / "hidden")
        with pytest.raises(RuntimeError, match="is served by another broker already"):
            RunningBroker(str(root.place), QUICK)


def test_a_root_without_a_path_for_journals_is_refused_with_a_remedy(bucket: str, memory_path: Path) -> None:
    root = Root.create(f"{bucket}/bare", storage_paths=[f"{bucket}/bare/a"])
    storage_paths.add(root, f"{bucket}/bare/b", role="segments")
    storage_paths.drain(root, 0)
    with pytest.raises(RuntimeError, match=r"no storage path for journals .*pulsarpy storage add URL --role journal"):
        RunningBroker(str(root.place))


def test_commands_know_the_root(bucket: str, memory_path: Path) -> None:
    def pulsarpy(*arguments: str) -> str:
        command = [sys.executable, "-m", "pulsar_on_spark.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    url = f"{bucket}/root"
    assert f"Created the root {url} with quorum 1/1/1 on 1 storage paths" in pulsarpy("init", url)
    pulsarpy("topics", "create", "t", "--root", url)
    assert "storage path 1" in pulsarpy("storage", "add", str(memory_path / "journal"), url, "--role", "journal")
    assert f"{url}/storage/0" in pulsarpy("status", url)
    assert "persistent://public/default/t" in pulsarpy("topics", "list", "--root", url)
