"""Health stores and reads a message; it is red where that is not possible, and says why."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.metadata.records import NamespaceRecord, PathRecord
from pulsar_on_spark.model.quorum import Quorum
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog.policies.policies import PersistencePolicies
from tests.kit.running_broker import RunningBroker
from tests.kit.small_disks import SmallDisk

from .conftest import WAIT_MS, new_client
from .test_http_topics import done, path, refused
from .test_metrics import CLUSTER, scrape, value


def health(broker: RunningBroker) -> httpx.Response:
    return httpx.get(f"{broker.web_url}/admin/v2/brokers/health", timeout=WAIT_MS / 1000)


def own_namespace(broker: RunningBroker) -> str:
    return "pulsar/" + broker.web_url.removeprefix("http://")


def test_a_message_is_stored_and_read(broker: RunningBroker, client: pulsar.Client) -> None:
    assert (health(broker).status_code, health(broker).text) == (200, "ok")
    reader = client.create_reader(f"persistent://{own_namespace(broker)}/healthcheck", pulsar.MessageId.earliest)
    assert int(reader.read_next(WAIT_MS).data()) > 0  # the time at which it was sent
    reader.close()
    namespace = Root.open(broker.root).store.view().get(NamespaceRecord, own_namespace(broker))
    assert namespace is not None
    assert namespace.policies["retention"] == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


def once(broker: RunningBroker, status: int) -> httpx.Response:
    """The first answer of this status: the outcome of a check holds for a second.

    And a check may last ten, in which the first one commits its topic: on a busy machine a later one comes through.
    """
    end_s = time.monotonic() + WAIT_MS / 1000
    while (answer := health(broker)).status_code != status:
        assert time.monotonic() < end_s, answer.text
    return answer


def red(broker: RunningBroker) -> str:
    """The reason why health is red, once it is."""
    reason = once(broker, 503).json()["reason"]
    assert isinstance(reason, str)
    return reason


@pytest.mark.long
def test_health_is_red_if_a_quorum_of_topics_or_all_entries_cannot_be_stored(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "root") as broker:
        policy = PersistencePolicies.of(Quorum(3, 3, 3)).model_dump(mode="json", by_alias=True)
        with httpx.Client(base_url=f"{broker.web_url}/admin/v2", timeout=WAIT_MS / 1000) as admin:
            done(admin.put(path("t")))
            done(admin.post(path("t", "persistence"), json=policy))
            client = new_client(broker.url)
            client.create_producer("t").send(b"a")
            once(broker, 200)
            samples = scrape(broker)
            of_journals = [CLUSTER | {"quorum": quorum} for quorum in ("3/2", "3/3")]
            assert [value(samples, "pulsarpy_journal_takes_entries", of) for of in of_journals] == [1, 1]
            assert [value(samples, "pulsarpy_open_ledgers", of) for of in of_journals] == [1, 1]
            assert all(value(samples, "pulsarpy_sealing_lag_limit_bytes", of) > 0 for of in of_journals)
            assert value(samples, "pulsarpy_journal_records_total", of_journals[1]) == 1
            first, *others = Root.open(broker.root).store.view().all(PathRecord)
            (broker.root / first.uri).rename(tmp_path / "away")
            assert "quorum 3/3 cannot be stored: Only 2 storage paths" in red(broker)
            client.close()
            done(admin.delete(path("t"), params={"force": True}))
        once(broker, 200)
        for other in others:
            (broker.root / other.uri).rename(tmp_path / f"away-{other.path_id}")
        assert red(broker).startswith("A message")
        assert httpx.get(f"{broker.web_url}/status.html", timeout=WAIT_MS / 1000).text == "ok"  # the process serves
        broker.kill()


@pytest.mark.long
@pytest.mark.root
def test_health_is_red_if_no_commit_is_possible(tmp_path: Path) -> None:
    """The journal has room on its own disks, so that messages are stored; that alone is not enough for long."""
    with SmallDisk(tmp_path / "disk", 32) as disk:
        root = disk.at / "root"
        Root.create(root, [tmp_path / f"path{number}" for number in range(3)])
        with RunningBroker(root) as broker:
            once(broker, 200)
            disk.fill(but_bytes=4096)
            assert "is full" in red(broker)
            disk.make_room()
            once(broker, 200)


def test_admin_requests_answer_503_if_they_cannot_be_stored(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "root") as broker:
        client = new_client(broker.url)
        producer = client.create_producer("t")
        producer.send(b"a")
        for number, record in enumerate(Root.open(broker.root).store.view().all(PathRecord)[:2]):
            (broker.root / record.uri).rename(tmp_path / f"away{number}")
        producer.send_async(b"b", callback=lambda *_: None)
        terminated = httpx.post(f"{broker.web_url}/admin/v2{path('t', 'terminate')}", timeout=WAIT_MS / 1000)
        refused(terminated, 503, "try again")
        broker.kill()
        client.close()
