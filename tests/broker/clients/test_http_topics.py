"""Topics, their partitions and subscriptions over the admin API, with official clients beside it."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pulsar
import pytest

from .conftest import WAIT_MS

EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


def path(topic: str, *more: str) -> str:
    return "/".join(("/persistent/public/default", topic, *more))


def done(answer: httpx.Response) -> None:
    assert answer.status_code == 204, answer.text
    assert answer.content == b""


def refused(answer: httpx.Response, status: int, part: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["reason"]
    assert part in answer.json()["reason"]


def answered(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def stats(admin: httpx.Client, topic: str) -> Any:
    return answered(admin.get(path(topic, "stats")))


def backlog(admin: httpx.Client, topic: str, subscription: str = "s") -> int:
    found: int = stats(admin, topic)["subscriptions"][subscription]["msgBacklog"]
    return found


def send(client: pulsar.Client, topic: str, messages: int, batch: int = 1) -> list[pulsar.MessageId]:
    """Send messages 0, 1, ... as texts, in batches of `batch`."""
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=10_000,
    )
    ids: list[pulsar.MessageId] = []
    for number in range(messages):
        producer.send_async(b"%d" % number, callback=lambda _, id_: ids.append(id_))
        if (number + 1) % batch == 0:
            producer.flush()
    producer.flush()
    producer.close()
    return ids


def test_a_topic_is_created_listed_and_deleted(admin: httpx.Client, topic: str) -> None:
    full = f"persistent://public/default/{topic}"
    done(admin.put(path(topic), json={"team": "a"}))
    refused(admin.put(path(topic)), 409, "exists already")
    assert full in answered(admin.get("/persistent/public/default"))
    assert full in answered(admin.get("/namespaces/public/default/topics"))
    assert full not in answered(admin.get("/persistent/public/default/partitioned"))
    assert answered(admin.get(path(topic, "partitions"))) == {"partitions": 0}
    assert answered(admin.get(path(topic, "properties"))) == {"team": "a"}
    done(admin.put(path(topic, "properties"), json={"cost": "7"}))
    done(admin.delete(path(topic, "properties"), params={"key": "team"}))
    assert answered(admin.get(path(topic, "properties"))) == {"cost": "7"}
    refused(admin.delete(path(topic, "partitions")), 405, "no partitions")
    done(admin.delete(path(topic)))
    refused(admin.delete(path(topic)), 404, "does not exist")
    assert full not in answered(admin.get("/persistent/public/default"))


@pytest.mark.parametrize("as_metadata", [False, True])
def test_a_partitioned_topic_grows(admin: httpx.Client, topic: str, as_metadata: bool) -> None:
    full = f"persistent://public/default/{topic}"
    if as_metadata:
        kind = "application/vnd.partitioned-topic-metadata+json"
        body = '{"partitions": 2, "properties": {"a": "b"}}'
        done(admin.put(path(topic, "partitions"), content=body, headers={"Content-Type": kind}))
        assert answered(admin.get(path(f"{topic}-partition-1", "properties"))) == {"a": "b"}
    else:
        done(admin.put(path(topic, "partitions"), json=2))
    refused(admin.put(path(topic, "partitions"), json=2), 409)
    done(admin.post(path(topic, "partitions"), json=3))
    refused(admin.post(path(topic, "partitions"), json=2), 412, "larger number")
    done(admin.post(path(topic, "createMissedPartitions")))
    assert answered(admin.get(path(topic, "partitions"))) == {"partitions": 3}
    assert full in answered(admin.get("/persistent/public/default/partitioned"))
    assert f"{full}-partition-2" in answered(admin.get("/persistent/public/default"))
    refused(admin.get(path(topic, "stats")), 404, "partitioned-stats")
    assert answered(admin.get(path(f"{topic}-partition-2", "stats")))["storedMessages"] == 0
    refused(admin.delete(path(topic)), 405)
    done(admin.delete(path(topic, "partitions")))
    refused(admin.get(path(topic, "partitions")), 404)


def test_a_subscription_gets_all_messages_of_added_partitions(
    admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    done(admin.put(path(topic, "partitions"), json=1))
    client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Latest).close()
    done(admin.post(path(topic, "partitions"), json=2))
    client.create_producer(f"{topic}-partition-1").send(b"before anybody has looked")
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Latest)
    assert consumer.receive(WAIT_MS).data() == b"before anybody has looked"


def test_a_topic_without_messages(admin: httpx.Client, topic: str) -> None:
    done(admin.put(path(topic)))
    done(admin.put(path(topic, "subscription", "s"), json=EARLIEST))
    done(admin.post(path(topic, "retention"), json={"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}))
    done(admin.post(path(topic, "trim")))
    assert answered(admin.get(path(topic, "internalStats")))["ledgers"] == []
    assert (backlog(admin, topic), stats(admin, topic)["storedMessages"]) == (0, 0)
    for move in ("skip_all", "skip/5", "resetcursor/7", "expireMessages/0"):
        done(admin.post(path(topic, "subscription", "s", *move.split("/"))))
    assert answered(admin.get(path(topic, "lastMessageId")))["entryId"] == -1
    for place in ("examinemessage", "messageid/7", "subscription/s/position/1"):
        refused(admin.get(path(topic, *place.split("/"))), 404)


def test_an_operator_makes_no_namespace_by_mistake(admin: httpx.Client) -> None:
    refused(admin.put("/persistent/public/defualt/x"), 404, "Namespace does not exist")
    refused(admin.get("/persistent/public/defualt"), 404)
    refused(admin.put("/non-persistent/public/default/x"), 405, "not persistent")
    refused(admin.put("/elsewhere/public/default/x"), 404, "No such path")


def test_a_topic_in_use_is_deleted_by_force_only(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    refused(admin.delete(path(topic)), 412)
    done(admin.delete(path(topic), params={"force": True}))


def test_subscriptions_are_created_where_they_are_wanted(
    admin: httpx.Client, client: pulsar.Client, topic: str
) -> None:
    ids = send(client, topic, 10)
    one = path(topic, "subscription")
    at = {"ledgerId": ids[4].ledger_id(), "entryId": ids[4].entry_id()}
    done(admin.put(f"{one}/first", json=EARLIEST))
    done(admin.put(f"{one}/last", json=LATEST))
    done(admin.put(f"{one}/none"))
    done(admin.put(f"{one}/at", json=at | {"properties": {"why": "test"}}))
    done(admin.put(f"{one}/behind", json=at | {"isExcluded": True}))
    refused(admin.put(f"{one}/at", json=at), 409)
    refused(admin.put(f"{one}/pulsar.dedup", json=at), 412, "reserved")
    refused(admin.put(f"{one}/everywhere", params={"replicated": True}), 501, "not replicated")
    assert answered(admin.get(path(topic, "subscriptions"))) == ["at", "behind", "first", "last", "none"]
    found = {name: each["msgBacklog"] for name, each in stats(admin, topic)["subscriptions"].items()}
    assert found == {"first": 10, "last": 0, "none": 0, "at": 6, "behind": 5}
    assert answered(admin.get(f"{one}/at/properties")) == {"why": "test"}
    assert client.subscribe(topic, "behind").receive(WAIT_MS).data() == b"5"
    done(admin.delete(f"{one}/first"))
    refused(admin.delete(f"{one}/first"), 404)
    refused(admin.delete(f"{one}/behind"), 412)
    done(admin.delete(f"{one}/behind", params={"force": True}))


def test_skipping_counts_messages_also_within_batches(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    consumer.close()
    send(client, topic, 30, batch=10)
    assert backlog(admin, topic) == 30
    one = path(topic, "subscription", "s")
    done(admin.post(f"{one}/skip/12"))
    assert backlog(admin, topic) == 18
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert sorted(int(consumer.receive(WAIT_MS).data()) for _ in range(18)) == list(range(12, 30))
    done(admin.post(f"{one}/skip_all"))  # under its consumer
    assert backlog(admin, topic) == 0
    refused(admin.post(path(topic, "subscription", "t", "skip_all")), 404)


def test_a_cursor_is_reset_by_time_and_by_id(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    send(client, topic, 3)
    middle_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= middle_ms:
        pass
    ids = send(client, topic, 2)
    one = path(topic, "subscription", "s")
    for place, expected in (
        (f"resetcursor/{middle_ms}", 2),
        ("resetcursor/0", 5),
        (f"expireMessages/{10**6}", 5),
        ("skip_all", 0),
    ):
        done(admin.post(f"{one}/{place}"))
        assert backlog(admin, topic) == expected
    last = {"ledgerId": ids[-1].ledger_id(), "entryId": ids[-1].entry_id()}
    for body, expected in ((EARLIEST, 5), (LATEST, 0), (last, 1), (last | {"isExcluded": True}, 0)):
        done(admin.post(f"{one}/resetcursor", json=body))
        assert backlog(admin, topic) == expected
    done(admin.post(f"{one}/resetcursor", json=EARLIEST))
    done(admin.post(f"{one}/expireMessages", json=last | {"isExcluded": True}))
    assert backlog(admin, topic) == 1
    done(admin.post(path(topic, "all_subscription", "expireMessages", "0")))
    assert backlog(admin, topic) == 0


def test_subscriptions_of_partitions(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    done(admin.put(path(topic, "partitions"), json=3))
    one = path(topic, "subscription", "s")
    done(admin.put(one, json=EARLIEST))
    send(client, topic, 30)
    found = answered(admin.get(path(topic, "partitioned-stats")))
    assert found["metadata"]["partitions"] == 3
    assert found["subscriptions"]["s"]["msgBacklog"] == found["storedMessages"] == found["msgInCounter"] == 30
    assert sum(each["subscriptions"]["s"]["msgBacklog"] for each in found["partitions"].values()) == 30
    assert answered(admin.get(path(topic, "partitioned-stats"), params={"perPartition": False}))["partitions"] == {}
    refused(admin.post(f"{one}/skip/1"), 405)
    refused(admin.post(f"{one}/resetcursor", json=EARLIEST), 405)
    done(admin.post(f"{one}/skip_all"))
    assert answered(admin.get(path(topic, "partitioned-stats")))["subscriptions"]["s"]["msgBacklog"] == 0
    done(admin.delete(one))
    assert answered(admin.get(path(topic, "subscriptions"))) == []
    assert len(answered(admin.get(path(topic, "partitioned-internalStats")))["partitions"]) == 3


def test_unloading_sends_clients_back(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"1")
    done(admin.put(path(topic, "unload")))
    producer.send(b"2")
    received = received_until(consumer, b"2")
    done(admin.put("/namespaces/public/default/unload"))
    producer.send(b"3")
    received += received_until(consumer, b"3")
    # None is acknowledged, so each may come again with its id; none is stored twice.
    assert sorted(set(received)) == list(zip((b"1", b"2", b"3"), ids(client, topic), strict=True))


def received_until(consumer: pulsar.Consumer, last: bytes) -> list[tuple[bytes, str]]:
    """Messages and their ids, up to the one that holds `last`."""
    received: list[tuple[bytes, str]] = []
    while not received or received[-1][0] != last:
        message = consumer.receive(WAIT_MS)
        received.append((message.data(), str(message.message_id())))
    return received


def ids(client: pulsar.Client, topic: str) -> list[str]:
    """The ids of all messages that the topic has."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(str(reader.read_next(WAIT_MS).message_id()))
    return found


def test_terminating_answers_the_last_id(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    (*_, last) = send(client, topic, 3)
    end = answered(admin.post(path(topic, "terminate")))
    assert (end["ledgerId"], end["entryId"]) == (last.ledger_id(), last.entry_id())
    assert answered(admin.post(path(topic, "terminate"))) == end
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic).send(b"more")


def test_subscriptions_of_a_namespace(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    namespace = f"public/{topic}"
    done(admin.put(f"/namespaces/{namespace}"))
    done(admin.put(f"/persistent/{namespace}/p/partitions", json=2))
    one = f"/persistent/{namespace}/p/subscription"
    for name in ("a", "b"):
        done(admin.put(f"{one}/{name}", json=EARLIEST))
    send(client, f"{namespace}/p", 10)

    def backlogs() -> dict[str, int]:
        found = answered(admin.get(f"/persistent/{namespace}/p/partitioned-stats"))["subscriptions"]
        return {name: each["msgBacklog"] for name, each in found.items()}

    assert backlogs() == {"a": 10, "b": 10}
    done(admin.post(f"/namespaces/{namespace}/clearBacklog/a"))
    assert backlogs() == {"a": 0, "b": 10}
    done(admin.post(f"/namespaces/{namespace}/clearBacklog"))
    assert backlogs() == {"a": 0, "b": 0}
    done(admin.put(f"{one}/b/properties", json={"k": "v"}))
    assert answered(admin.get(f"{one}/b/properties")) == {"k": "v"}
    consumer = client.subscribe(f"{namespace}/p", "a")
    refused(admin.post(f"/namespaces/{namespace}/unsubscribe/a"), 412)
    consumer.close()
    done(admin.post(f"/namespaces/{namespace}/unsubscribe/b"))
    assert backlogs() == {"a": 0}
    refused(admin.post("/namespaces/public/missing/clearBacklog"), 404)


def test_a_topic_that_is_not_stored_is_deleted_by_force(admin: httpx.Client, client: pulsar.Client, topic: str) -> None:
    place = f"/non-persistent/public/default/{topic}"
    refused(admin.delete(place), 404, "exists only while it has clients")
    client.subscribe(f"non-persistent://public/default/{topic}", "s")
    refused(admin.delete(place), 412, "in use")
    done(admin.delete(place, params={"force": True}))
