"""Brokers with everything on an S3 server, their journals included: any host can take over from any other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.metadata.features import OBJECT_JOURNALS
from pulsar_on_spark.metadata.records import IncarnationRecord, RootRecord
from pulsar_on_spark.model.ids import IncarnationId, JournalFileId, PathId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.objects.profiles import FILE_VARIABLE
from pulsar_on_spark.testing.s3_faults import Fault, S3Faults
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.tail import Tail
from pulsar_on_spark.topic.maintenance.maintain import maintain
from tests.kit import messages
from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.s3_server import S3Server, write_profile
from tests.kit.waiting import wait_until
from tests.object_roots.test_hybrid_broker import receive, send

pytestmark = pytest.mark.long

LATE = {"seal_within_s": 3600, "journal_object_interval_ms": 20}
"""Settings with which entries are in the journal only."""


@pytest.fixture
def root(bucket: str) -> Root:
    return Root.create(f"{bucket}/root")


def broker_of(root: Root, folder: Path, **settings: object) -> RunningBroker:
    """A broker in a process and a folder of its own, at ports of its own."""
    folder.mkdir(exist_ok=True)
    ports = {"broker_service_port": free_port(), "web_service_port": free_port()}
    return RunningBroker(
        str(root.place), {**LATE, **ports, **settings}, command="broker", prefix=["env", "-C", str(folder)]
    )


def readable(root: Root, topic: str = "t") -> list[bytes | None]:
    """The values that a reader gets, from segments and journals."""
    with closing(Tail(root)) as tail:
        parts = catalog.parts(root.store.view(), catalog.require_topic(root.store.view(), TopicName.parse(topic)))
        return [message.value for message in messages.read(root, topic, view=tail.read_view(parts))]


class Producing:
    """A producer that sends without pause until its end; it never blocks, because its broker may be away for good.

    Attributes:
        acked: The values that were acknowledged.
    """

    def __init__(self, url: str, topic: str) -> None:
        self.acked: list[bytes] = []
        self._client = pulsar.Client(url, operation_timeout_seconds=60)
        self._producer = self._client.create_producer(topic, send_timeout_millis=0, max_pending_messages=200)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.001):
            value = b"%d" % number
            self._producer.send_async(value, lambda result, _, value=value: self._answered(result, value))
            number += 1

    def _answered(self, result: pulsar.Result, value: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.acked.append(value)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.shutdown()


@contextmanager
def producing(url: str, topic: str) -> Iterator[Producing]:
    producer = Producing(url, topic)
    try:
        yield producer
    finally:
        producer.stop()


def test_clients_are_served_and_any_host_reads_the_journal(root: Root, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(100)]
    broker = broker_of(root, tmp_path / "a")
    send(broker.url, "t", values)
    assert receive(broker.url, "t", 100) == values
    assert readable(Root.open(root.place)) == values, "nothing is sealed"
    record = root.store.view().get(RootRecord, "root")
    assert record is not None
    assert OBJECT_JOURNALS in record.features
    assert broker.stop() == 0, broker.said
    assert list((tmp_path / "a").iterdir()) == []
    assert readable(root) == values
    assert maintain(root).journals.sealed_entries == 100
    assert readable(root) == values


def test_a_killed_brokers_journal_is_recovered_elsewhere_with_nothing_lost(root: Root, tmp_path: Path) -> None:
    first = broker_of(root, tmp_path / "a")
    second = broker_of(root, tmp_path / "b")
    urls = f"{first.url},{second.url.removeprefix('pulsar://')}"
    with producing(urls, "t") as producer:
        wait_until(lambda: len(producer.acked) > 300, "entries are acknowledged")
        serving = first if "Recovered" not in first.said and _serves(root, first) else second
        serving.kill()
        before = len(producer.acked)
        wait_until(lambda: len(producer.acked) > before + 300, lambda: f"taken over: {first.said}{second.said}")
    other = second if serving is first else first
    acked = set(producer.acked)
    got = readable(root)
    assert acked <= set(got)
    assert len(acked) > 600
    assert other.stop() == 0, other.said


def _serves(root: Root, broker: RunningBroker) -> bool:
    """True if the broker has the topic: only its journal has entries."""
    return broker.url.rpartition(":")[2] in str(
        subprocess.run(
            ["curl", "-s", f"{broker.web_url}/lookup/v2/topic/persistent/public/default/t"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_a_broker_that_was_stopped_is_fenced_and_exits_when_it_wakes(root: Root, tmp_path: Path) -> None:
    first = broker_of(root, tmp_path / "a")
    with producing(first.url, "t") as producer:
        wait_until(lambda: len(producer.acked) > 100, "entries are acknowledged")
        os.kill(first.pid, signal.SIGSTOP)
        second = broker_of(root, tmp_path / "b")
        try:
            wait_until(lambda: _states(root)[0] == "CLOSED", lambda: f"it is taken over: {second.said}")
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert first.wait() == 1, first.said
        assert "was taken over" in first.said
        wait_until(lambda: len(_states(root)) == 2, "the other broker has a journal")
    acked = set(producer.acked)
    assert acked <= set(readable(root)), "whichever broker has acknowledged it"
    assert second.stop() == 0, second.said


def _states(root: Root) -> list[str]:
    records = root.store.view().all(IncarnationRecord)
    return [record.state for record in sorted(records, key=lambda record: record.state != "CLOSED")]


def test_an_operator_recovers_a_journal_from_any_host(root: Root, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(random.randrange(20, 200))]
    broker = broker_of(root, tmp_path / "a")
    send(broker.url, "t", values)
    broker.kill()

    command = [sys.executable, "-m", "pulsar_on_spark.cli", "recover", str(root.place)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert _states(root) == ["CLOSED"]
    assert readable(root) == values


@pytest.mark.soak
def test_producers_go_on_while_one_store_of_three_is_away(
    s3_server: S3Server, faults: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sealer waits for the store again and again, which is no hang."""
    bucket, away = s3_server.make_bucket(), s3_server.make_bucket()
    write_profile(tmp_path / "storage.toml", bucket, s3_server.options(), {"away": s3_server.options(faults.url)})
    with (tmp_path / "storage.toml").open("a") as file:
        file.write(f'\nmatch = "{away}"\n')
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "storage.toml"))
    root = Root.create(f"{bucket}/root", [f"{away}/a", f"{bucket}/b", f"{bucket}/c"], Quorum(3, 3, 2))
    broker = broker_of(root, tmp_path / "a", seal_within_s=2)
    with producing(broker.url, "t") as producer:
        wait_until(lambda: len(producer.acked) > 300, "entries are acknowledged")
        faults.decide = lambda _: Fault.RESET
        wait_until(lambda: "stops using storage path 0" in broker.said, "its path is given up")
        wait_until(lambda: "is put again" in broker.said, "a request has waited for as long as it may")
        before = len(producer.acked)
        wait_until(
            lambda: len(producer.acked) > before + 300, lambda: f"the producer gets receipts again: {broker.said}"
        )
    assert "producers are held back" not in broker.said
    assert broker.stop() == 0, broker.said
    assert set(producer.acked) <= set(readable(root))


def test_a_log_that_is_trimmed_leaves_fences_only(root: Root, tmp_path: Path) -> None:
    broker = broker_of(root, tmp_path / "a")
    send(broker.url, "t", [b"v"] * 50)
    broker.kill()
    second = broker_of(root, tmp_path / "b", seal_within_s=0.5)
    wait_until(lambda: "CLOSED" in _states(root), lambda: second.said)
    assert second.stop() == 0, second.said

    def is_cleared() -> bool:
        maintain(root)
        return root.store.view().all(IncarnationRecord) == []

    wait_until(is_cleared, "the logs are gone")
    path = root.journal_paths(root.store.view())[PathId(0)]
    left = list(path.objects.list_after("journal"))  # type: ignore[union-attr]
    sizes = {listed.size for listed in left}
    assert left, "the fences stay"
    assert max(sizes) < 200, [listed.key for listed in left]
    assert readable(root) == [b"v"] * 50
    assert {IncarnationId(listed.key.split("/")[1]) for listed in left}
    assert {JournalFileId(listed.key.split("/")[2]) for listed in left}
