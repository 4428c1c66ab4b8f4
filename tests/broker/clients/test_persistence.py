"""The policy `persistence`: a broker has a journal for each quorum that its topics ask for."""

from __future__ import annotations

from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.metadata.records import FileRecord, IncarnationRecord, LedgerRecord, SegmentRecord, TopicRecord
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

from .conftest import WAIT_MS, new_client
from .test_durable import expect_stored, stored
from .test_http_topics import answered, done, path, refused

ONE = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.0,
}
ALL = {**ONE, "bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 3}
DEFAULT = {**ONE, "bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}


def quorums(root: Root, topic: str) -> list[tuple[int, int]]:
    """Write and ack quorum of the journals of a topic's ledgers, in order."""
    view = root.store.view()
    record = view.get(TopicRecord, TopicName.parse(topic).full)
    assert record is not None
    owners = [view.get(IncarnationRecord, str(each.incarnation)) for each in view.all(LedgerRecord, record.topic_id)]
    return [(each.write_quorum, each.ack_quorum) for each in owners if each is not None]


@pytest.mark.long
def test_each_quorum_has_a_journal_that_outlives_its_broker(tmp_path: Path) -> None:
    first = RunningBroker(tmp_path / "root")
    root = Root.open(first.root)
    sent: dict[str, list[bytes]] = {"one": [], "all": [], "plain": []}
    with httpx.Client(base_url=f"{first.web_url}/admin/v2", timeout=WAIT_MS / 1000) as admin:
        for topic, policy in (("one", ONE), ("all", ALL), ("plain", None)):
            done(admin.put(path(topic)))
            if policy is not None:
                done(admin.post(path(topic, "persistence"), json=policy))
    client = new_client(first.url)
    for topic, values in sent.items():
        producer = client.create_producer(topic)
        for number in range(20):
            values.append(b"%d" % number)
            producer.send(values[-1])
    assert {topic: quorums(root, topic) for topic in sent} == {"one": [(1, 1)], "all": [(3, 3)], "plain": [(3, 2)]}
    first.kill()
    client.close()

    with RunningBroker(first.root) as again:
        client = new_client(again.url)
        for topic, values in sent.items():
            consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
            producer = client.create_producer(topic)
            producer.send(b"behind")
            values.append(b"behind")
            assert [consumer.receive(WAIT_MS).data() for _ in values] == values
        client.close()

    assert {topic: stored(first.root, topic) for topic in sent} == sent
    for _ in range(2):
        seal_closed(root, pytest.fail, grace_s=0)
    assert root.status().incarnations == ()
    view = root.store.view()
    for topic, copies in (("one", 1), ("all", 3), ("plain", 3)):
        (part,) = [each for each in view.all(TopicRecord) if each.name.endswith(f"/{topic}")]
        files = {each.file_id for each in view.all(SegmentRecord, part.topic_id)}
        assert files
        assert {len(each.copies) for each in view.all(FileRecord) if each.file_id in files} == {copies}


def test_a_policy_that_changes_under_a_producer_moves_its_topic(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    root = Root.open(broker.root)
    namespace, name = f"public/{topic}", f"public/{topic}/t"
    done(admin.put(f"/namespaces/{namespace}"))
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "s")
    values = [b"before"]
    producer.send(values[-1])
    of_namespace, of_topic = f"/namespaces/{namespace}/persistence", f"/persistent/{name}/persistence"
    done(admin.post(of_namespace, json=ONE))
    assert answered(admin.get(of_namespace)) == ONE
    assert answered(admin.get(of_topic, params={"applied": True})) == ONE

    def journal() -> tuple[int, int]:
        values.append(b"%d" % len(values))
        producer.send(values[-1])
        return quorums(root, name)[-1]

    wait_until(lambda: journal() == (1, 1))
    done(admin.delete(of_namespace))
    assert answered(admin.get(of_topic, params={"applied": True})) == DEFAULT
    wait_until(lambda: journal() == (3, 2))
    refused(admin.post(of_topic, json={**ONE, "bookkeeperAckQuorum": 2}), 412, "must hold")
    refused(admin.post(of_topic, json={**ONE, "bookkeeperEnsemble": 4}), 412, "needs 4 storage")
    assert [consumer.receive(WAIT_MS).data() for _ in values] == values
    expect_stored(broker.root, name, values)
