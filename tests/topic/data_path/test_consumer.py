"""The slots that a consumer acquires and those that it leaves, with real leases and metadata."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.root_place import LEASES, consumers_of
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.data_path.consumer import SubscriptionConsumer, Turn
from pulsar_on_spark.topic.maintenance.retention import expiry
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import Keep, Standby, SubscriptionType, Take
from tests.kit import messages

NOTHING = StreamOffset("me", {})


@pytest.fixture
def parts(root: Root) -> tuple[TopicPart, TopicPart]:
    for name in ("t", "u"):
        root.create_topic(name)
    (first,), (second,) = (messages.target(root, name).parts for name in ("t", "u"))
    return first, second


def subscribe(
    root: Root, parts: tuple[TopicPart, ...], type_: SubscriptionType, expires_s: float | None = None
) -> None:
    subscriptions.create_subscriptions(root.store, "sub", type_, dict.fromkeys(parts, EARLIEST), expires_s)


@pytest.fixture
def consumers(root: Root) -> Iterator[list[SubscriptionConsumer]]:
    made: list[SubscriptionConsumer] = []
    yield made
    for consumer in made:
        consumer.stop((), None)


def new_consumer(root: Root, made: list[SubscriptionConsumer], type_: SubscriptionType) -> SubscriptionConsumer:
    made.append(SubscriptionConsumer(root, "sub", type_, "me", lease_s=3_000))
    return made[-1]


def turn(root: Root, consumer: SubscriptionConsumer, parts: tuple[TopicPart, ...]) -> Turn:
    return consumer.decide_turn(root.store.view(durable=True), parts, NOTHING)


def owners(root: Root, part: TopicPart) -> set[str | None]:
    record = root.store.view().get(SubscriptionRecord, f"{part.topic_id}/sub")
    assert record is not None
    return {owner.consumer for owner in record.owners}


def lease_files(root: Root) -> list[Path]:
    return list((root.path / LEASES / consumers_of("sub")).glob("*"))


@pytest.mark.parametrize("type_", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_new_topic_is_taken_only_when_the_lease_names_it(
    root: Root, parts: tuple[TopicPart, TopicPart], consumers: list[SubscriptionConsumer], type_: SubscriptionType
) -> None:
    """Others would see no lease on it, and take it over at once."""
    subscribe(root, parts, type_)
    first, second = parts
    consumer = new_consumer(root, consumers, type_)
    (taken,) = turn(root, consumer, (first,)).actions[first.name]
    assert isinstance(taken, Take)

    (file,) = lease_files(root)
    in_the_way = file.with_suffix(f".{json.loads(file.read_text())['token']}.tmp")
    in_the_way.mkdir()
    for _ in range(2):
        found = turn(root, consumer, parts)
        assert found.actions[second.name] == (Standby(),)
        assert isinstance(found.actions[first.name][0], Keep), "what it has it reads on"
        assert not found.standing_by
        assert (owners(root, first), owners(root, second)) == ({"me"}, set())

    in_the_way.rmdir()
    (taken,) = turn(root, consumer, parts).actions[second.name]
    assert isinstance(taken, Take)
    assert owners(root, second) == {"me"}
    assert set(json.loads(file.read_text())["topics"]) == {first.topic_id, second.topic_id}


def test_the_type_of_a_new_topic_stays_while_the_lease_does_not_name_it(
    root: Root, parts: tuple[TopicPart, TopicPart], consumers: list[SubscriptionConsumer]
) -> None:
    first, second = parts
    subscribe(root, (first,), "Shared")
    subscribe(root, (second,), "Failover")
    consumer = new_consumer(root, consumers, "Shared")
    turn(root, consumer, (first,))
    (file,) = lease_files(root)
    in_the_way = file.with_suffix(f".{json.loads(file.read_text())['token']}.tmp")
    in_the_way.mkdir()
    before = root.store.view().get(SubscriptionRecord, f"{second.topic_id}/sub")
    turn(root, consumer, parts)
    assert root.store.view().get(SubscriptionRecord, f"{second.topic_id}/sub") == before
    in_the_way.rmdir()


def test_a_consumer_that_stops_leaves_no_lease(
    root: Root, parts: tuple[TopicPart, TopicPart], consumers: list[SubscriptionConsumer]
) -> None:
    subscribe(root, parts, "Exclusive")
    for _ in range(3):
        consumer = new_consumer(root, consumers, "Exclusive")
        turn(root, consumer, parts)
        consumer.stop(parts, NOTHING)
        assert lease_files(root) == []


def test_the_lease_of_an_expiring_subscription_has_its_last_use(
    root: Root, parts: tuple[TopicPart, TopicPart], consumers: list[SubscriptionConsumer]
) -> None:
    """It is older than that, and was in use until now."""
    subscribe(root, parts, "Exclusive", expires_s=0.3)
    time.sleep(0.4)
    consumer = new_consumer(root, consumers, "Exclusive")
    turn(root, consumer, parts)
    consumer.stop(parts, NOTHING)
    (file,) = lease_files(root)
    assert json.loads(file.read_text())["released"]
    assert expiry.expire_subscriptions(root, file.stat().st_mtime + 0.2) == 0
    assert expiry.expire_subscriptions(root, file.stat().st_mtime + 0.4) == 2
