"""Topics, partitions and schemas in the metadata."""

from __future__ import annotations

import json

import pytest

from pulsar_on_spark.metadata.records import (
    LedgerRecord,
    NamespaceRecord,
    SchemaRecord,
    SegmentRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
)
from pulsar_on_spark.model.errors import (
    InvalidArgumentError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from tests.kit import messages

CLICK = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]})
OTHER = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]})


def test_topics_and_their_partitions(root: Root) -> None:
    root.create_topic("b", 3)
    root.create_topic("shop/orders/a")
    view = root.store.view()

    assert [topic.name for topic in root.topics()] == ["persistent://public/default/b", "persistent://shop/orders/a"]
    parts = catalog.parts(view, catalog.require_topic(view, TopicName.parse("b")))
    assert [part.name.rpartition("/")[2] for part in parts] == ["b-partition-0", "b-partition-1", "b-partition-2"]
    assert [part.partition for part in parts] == [0, 1, 2]
    (alone,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse("shop/orders/a")))
    assert alone.partition == -1
    (second,) = catalog.parts(view, catalog.require_topic(view, TopicName.parse("b-partition-1")))
    assert second == parts[1]
    assert view.get(NamespaceRecord, "shop/orders") is not None
    assert view.get(TenantRecord, "shop") is not None


def test_creating_twice(root: Root) -> None:
    first = root.create_topic("t", 2)
    with pytest.raises(TopicExistsError, match="exists already"):
        root.create_topic("persistent://public/default/t")
    assert catalog.create_topic(root.store, TopicName.parse("t"), None, exist_ok=True) == first


@pytest.mark.parametrize(("name", "partitions"), [("t", 0), ("t", 10_001), ("t-partition-1", None), ("a b/c", None)])
def test_invalid_topics_are_not_created(root: Root, name: str, partitions: int | None) -> None:
    with pytest.raises(InvalidArgumentError):
        root.create_topic(name, partitions)
    assert root.topics() == []


def test_partitions_are_added_and_never_taken(root: Root) -> None:
    root.create_topic("t", 2)
    root.create_topic("plain")
    messages.write(root, "t", [b"a", b"b"])
    before = messages.read(root, "t")

    root.add_partitions("t", 4)

    assert messages.read(root, "t") == before
    assert len(messages.target(root, "t").parts) == 4
    for name, partitions, error in (
        ("t", 4, InvalidArgumentError),
        ("t", 1, InvalidArgumentError),
        ("t", 10_001, InvalidArgumentError),
        ("plain", 2, InvalidArgumentError),
        ("unknown", 2, TopicNotFoundError),
    ):
        with pytest.raises(error):
            root.add_partitions(name, partitions)


def test_new_partitions_have_the_subscriptions_of_the_first_from_their_beginning(root: Root) -> None:
    root.create_topic("t", 2)
    first, second = messages.target(root, "t").parts
    messages.write(root, "t", [b"a", b"b"])
    subscriptions.create_subscriptions(root.store, "all", "Key_Shared", dict.fromkeys((first, second), EARLIEST), 60.0)
    subscriptions.create_subscriptions(root.store, "one", "Exclusive", {second: EARLIEST})

    root.add_partitions("t", 4)

    view = root.store.view()
    for part in messages.target(root, "t").parts[2:]:
        (found,) = view.all(SubscriptionRecord, part.topic_id)
        assert (found.name, found.type, found.expires_after_s, found.owners) == ("all", "Key_Shared", 60.0, ())
        assert (found.start_ledger, found.start_entry) == (EARLIEST.ledger, EARLIEST.entry)


def test_partitions_that_are_added_count_among_the_topics_of_a_namespace(root: Root) -> None:
    root.create_topic("t", 2)
    set_namespace_policies(root, "public/default", {"max_topics_per_namespace": 3})
    with pytest.raises(InvalidArgumentError, match=r"2 of at most 3 topics.*t-partition-2"):
        root.add_partitions("t", 4)
    root.add_partitions("t", 3)


def test_deleting_a_topic_deletes_its_records(root: Root) -> None:
    root.create_topic("t", 2, schema=CLICK)
    root.create_topic("stays")
    messages.write(root, "t", [b"a", b"b"])
    messages.write(root, "stays", [b"s"])
    parts = messages.target(root, "t").parts
    subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))

    with pytest.raises(InvalidArgumentError, match="subscription 'sub'"):
        root.delete_topic("t")
    with pytest.raises(InvalidArgumentError, match="is a partition"):
        root.delete_topic("t-partition-0", force=True)
    root.delete_topic("t", force=True)

    view = root.store.view()
    assert [topic.name for topic in view.all(TopicRecord)] == ["persistent://public/default/stays"]
    assert view.all(SubscriptionRecord) == view.all(SchemaRecord) == []
    assert len(view.all(LedgerRecord)) == len(view.all(SegmentRecord)) == 1
    with pytest.raises(TopicNotFoundError, match="does not exist"):
        root.delete_topic("t")


def test_ids_only_grow_over_deletion_and_creation(root: Root) -> None:
    last = None
    for _ in range(3):
        root.create_topic("t")
        messages.write(root, "t", [b"a"])
        messages.write(root, "t", [b"b", b"c"])
        found = messages.read(root, "t")
        assert [message.value for message in found] == [b"a", b"b", b"c"]
        assert [message.id for message in found] == sorted(message.id for message in found)
        assert last is None or found[0].id > last
        last = found[-1].id
        root.delete_topic("t")


def test_patterns(root: Root) -> None:
    for name in ("flights", "flights-2013", "shop/orders/flights"):
        root.create_topic(name)
    view = root.store.view()
    found = {
        pattern: [topic.name.removeprefix("persistent://") for topic in catalog.matching_topics(view, pattern)]
        for pattern in ("flights.*", "persistent://shop/.*", "shop/orders/flights", "nothing")
    }
    assert found == {
        "flights.*": ["public/default/flights", "public/default/flights-2013"],
        "persistent://shop/.*": ["shop/orders/flights"],
        "shop/orders/flights": ["shop/orders/flights"],
        "nothing": [],
    }
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        catalog.matching_topics(view, "(")


def test_a_topic_is_created_with_its_schema_in_one_commit(root: Root) -> None:
    before = root.store.view().version
    created = root.create_topic("t", schema=CLICK)
    view = root.store.view()
    declared = registry.latest(view, created)
    assert declared is not None
    assert (declared.type, view.version) == ("JSON", before + 1)
