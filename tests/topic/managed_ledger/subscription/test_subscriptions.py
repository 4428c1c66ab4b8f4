"""Creating and deleting subscriptions, and consumers that come and go."""

from __future__ import annotations

import time

import pytest

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import ConsumerBusyError, SubscriptionNotFoundError, TopicNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.root import Root
from pulsar_on_spark.storage.root_place import LEASES, consumers_of
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import LeaseKeeper
from pulsar_on_spark.topic.managed_ledger.subscription import subscriptions
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions
from tests.kit import messages


@pytest.fixture
def parts(root: Root) -> tuple[TopicPart, ...]:
    root.create_topic("t", 2)
    return messages.target(root, "t").parts


def record_of(root: Root, part: TopicPart, name: str = "sub") -> SubscriptionRecord | None:
    return root.store.view().get(SubscriptionRecord, f"{part.topic_id}/{name}")


def own(root: Root, part: TopicPart, consumer: str) -> None:
    record = record_of(root, part)
    assert record is not None
    owner = SlotOwner(consumer=consumer, epoch=2, start_ledger=0, start_entry=0, slots=(0,))
    owned = record.model_copy(update={"owners": (owner,)})
    root.store.commit(lambda _: Change(puts=[owned], keys={keys.subscription(part.topic_id, "sub"): None}))


def test_created_once_and_on_new_partitions_later(root: Root, parts: tuple[TopicPart, ...]) -> None:
    first = Position(LedgerId(3), EntryId(4))
    subscriptions.create_subscriptions(root.store, "sub", "Shared", {parts[0]: first})
    before = record_of(root, parts[0])
    subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
    assert record_of(root, parts[0]) == before
    assert before is not None
    assert (before.type, before.start_ledger, before.start_entry, before.start_epoch) == ("Shared", 3, 4, 1)
    second = record_of(root, parts[1])
    assert second is not None
    assert second.type == "Exclusive"


def test_a_subscription_of_the_same_name_starts_afresh(root: Root, parts: tuple[TopicPart, ...]) -> None:
    """Cursor rows of the deleted one, late ones too, do not count."""
    for _ in range(3):
        subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
        record = record_of(root, parts[0])
        assert record is not None
        row = CursorRow(parts[0].topic_id, "sub", 0, record.start_epoch, 99, 7, 7)
        root.store.append_cursors([row])
        root.delete_subscription("t", "sub")
        assert record_of(root, parts[0]) is None
    subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
    record = record_of(root, parts[0])
    assert record is not None
    assert current_positions(record, root.store.cursors().of(parts[0].topic_id, "sub"))[0] == EARLIEST


def test_deleting_a_missing_subscription(root: Root, parts: tuple[TopicPart, ...]) -> None:
    with pytest.raises(SubscriptionNotFoundError, match="'sub' does not exist"):
        root.delete_subscription("t", "sub")
    with pytest.raises(TopicNotFoundError):
        root.delete_subscription("unknown", "sub")


def test_a_subscription_that_is_being_read_is_not_deleted(root: Root, parts: tuple[TopicPart, ...]) -> None:
    subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
    own(root, parts[1], "me")
    keeper = LeaseKeeper(root.consumer_leases("sub"), "me", 0.5)
    keeper.start([TopicId(part.topic_id) for part in parts])
    with pytest.raises(ConsumerBusyError, match="consumer 'me'"):
        root.delete_subscription("t", "sub")
    assert record_of(root, parts[0]) is not None
    keeper.stop()
    root.delete_subscription("t", "sub")
    assert record_of(root, parts[0]) is record_of(root, parts[1]) is None


def test_a_killed_consumer_is_waited_for_and_force_does_not_wait(root: Root, parts: tuple[TopicPart, ...]) -> None:
    for force in (False, True):
        subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
        own(root, parts[0], "killed")
        file = root.path / LEASES / consumers_of("sub") / "killed.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        topics = ",".join(f'"{part.topic_id}"' for part in parts)
        file.write_text(
            f'{{"v":1,"consumer":"killed","token":"{force}","topics":[{topics}],"counter":3,"duration_s":0.6,'
            '"released":false}'
        )
        started_s = time.monotonic()
        root.delete_subscription("t", "sub", force=force)
        waited_s = time.monotonic() - started_s
        assert record_of(root, parts[0]) is None
        assert waited_s < 0.5 if force else waited_s >= 0.6


def test_an_owner_without_any_lease_is_gone(root: Root, parts: tuple[TopicPart, ...]) -> None:
    subscriptions.create_subscriptions(root.store, "sub", "Exclusive", dict.fromkeys(parts, EARLIEST))
    own(root, parts[0], "gone")
    root.delete_subscription("t", "sub")
    assert record_of(root, parts[0]) is None


def test_another_type_begins_where_all_slots_are_acknowledged(root: Root, parts: tuple[TopicPart, ...]) -> None:
    subscriptions.create_subscriptions(root.store, "sub", "Shared", {parts[0]: EARLIEST})
    rows = [CursorRow(parts[0].topic_id, "sub", slot, 1, 1, 5, 10 + slot) for slot in range(64)]
    root.store.append_cursors(rows)
    record = record_of(root, parts[0])
    assert record is not None
    changed = subscriptions.retyped(record, root.store.cursors(), "Exclusive")
    assert (changed.type, changed.start_ledger, changed.start_entry, changed.start_epoch) == ("Exclusive", 5, 10, 2)
    assert current_positions(changed, root.store.cursors().of(parts[0].topic_id, "sub"))[0] == Position(
        LedgerId(5), EntryId(10)
    )
