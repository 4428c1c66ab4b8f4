"""A broker's cursors are acquired, moved, confirmed, reset and released; each step is durable where it must be."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import ConsumerBusyError, ConsumerFencedError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete
from tests.kit import messages
from tests.kit.cursor_broker import CursorBroker
from tests.kit.waiting import until


def record(root: Root, name: str = "s") -> SubscriptionRecord | None:
    (topic,) = [topic for topic in root.topics() if topic.name.endswith("/t")]
    return root.store.view().get(SubscriptionRecord, f"{topic.topic_id}/{name}")


def rows(root: Root, name: str = "s") -> tuple[CursorRow, ...]:
    subscription = record(root, name)
    assert subscription is not None
    return root.store.cursors().of(subscription.topic_id, name)


def left(cursor: OpenCursor) -> set[tuple[int, int]]:
    """Return the messages that are still to be delivered."""
    ranges = cursor.cursor.deliverable(EARLIEST, 1_000_000).ranges
    return {(range_.ledger, entry) for range_ in ranges for entry in range(range_.first, range_.end)}


def ids(sent: list[MessageId]) -> set[tuple[int, int]]:
    return {(message.ledger, message.entry) for message in sent}


def ack(cursor: OpenCursor, *acked: MessageId) -> None:
    for message in acked:
        cursor.cursor.acknowledge(message.ledger, message.entry)
    cursor.record_changes()


def test_a_new_subscription_starts_at_its_position_and_belongs_to_the_broker(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 10)
        first = await broker.open("t", name="first")
        last = await broker.open("t", name="last", latest=True)
        middle = await broker.open("t", name="middle", start=Position(sent[4].ledger, sent[4].entry))
        assert left(first) == ids(sent)
        assert left(last) == set()
        assert left(middle) == ids(sent[4:])
        for cursor in (first, last, middle):
            subscription = record(root, cursor.name)
            assert subscription is not None
            assert (subscription.face, subscription.owners[0].consumer) == ("broker", broker.incarnation.id)
            assert subscription.owners[0].epoch == cursor.cursor.epoch
        assert await broker.open("t", name="first") is first
        await broker.stop()

    asyncio.run(run())


def test_a_receipt_waits_for_the_journal_and_many_share_a_record(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=0.5)
        sent = await broker.send("t", [b"x"] * 300)
        cursor = await broker.open("t")
        done = []

        async def confirm(message: MessageId) -> None:
            ack(cursor, message)
            await cursor.wait_durable()
            done.append(message)

        await asyncio.gather(*(confirm(message) for message in sent[1::2]))
        assert len(done) == 150
        assert cursor.cursor.rank[1] < 20, "each receipt had a record of its own"
        await cursor.wait_durable()  # nothing is left to wait for
        broker.kill()
        other = await CursorBroker.start(root)
        assert left(await other.open("t")) == ids(sent[::2])
        await other.stop()

    asyncio.run(run())


def test_acknowledgements_without_waiters_are_recorded_about_once_a_second(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 1_000)
        cursor = await broker.open("t")
        loop = asyncio.get_running_loop()
        began_s, records = loop.time(), set()
        for message in sent:
            ack(cursor, message)
            records.add(cursor.cursor.rank)
            await asyncio.sleep(0.002)
        await until(lambda: not cursor.cursor.unrecorded and not cursor.is_recording)
        records.add(cursor.cursor.rank)
        assert 2 <= len(records) <= loop.time() - began_s + 2
        await broker.stop()

    asyncio.run(run())


def test_moved_cursors_are_written_as_one_row_each_in_one_commit(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 4)
        cursors = [await broker.open("t", name=f"s{number}") for number in range(20)]
        for number, cursor in enumerate(cursors):
            ack(cursor, sent[number % 4])
        log = root.store._opened_cursor_log()
        root.store.cursors()
        before = log.version
        await broker.keeper.save_cursors()
        root.store.cursors()
        assert log.version == before + 1
        assert [row.rank for cursor in cursors for row in rows(root, cursor.name)] == [c.cursor.rank for c in cursors]
        await broker.keeper.save_cursors()
        root.store.cursors()
        assert log.version == before + 1, "nothing moved"
        await broker.stop()

    asyncio.run(run())


def test_released_cursors_are_free_with_their_holes_and_can_be_acquired_again(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 10)
        cursors = [await broker.open("t", name=f"s{number}") for number in range(30)]
        for cursor in cursors:
            ack(cursor, sent[0], sent[3], sent[7])
        before = root.store.view().version
        await broker.keeper.release_subscriptions(cursors)
        assert root.store.view().version == before + 1, "grouped"
        subscription = record(root, "s3")
        assert subscription is not None
        assert (subscription.face, subscription.owners[0].consumer) == (None, None)
        assert mark_delete(subscription, rows(root, "s3")) == Position(sent[1].ledger, sent[1].entry)
        with pytest.raises(ConsumerFencedError, match="was released"):
            await cursors[3].wait_durable()
        again = await broker.open("t", name="s3")
        assert again.cursor.epoch > cursors[3].cursor.epoch
        assert left(again) == ids(sent) - ids([sent[0], sent[3], sent[7]])
        await broker.stop()

    asyncio.run(run())


def test_a_seek_back_is_in_delta_before_it_returns_and_drops_later_acknowledgements(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=0.5)
        sent = await broker.send("t", [b"x"] * 10)
        cursor = await broker.open("t")
        ack(cursor, *sent[:6], sent[8])
        await cursor.wait_durable()
        await broker.keeper.save_cursors()
        await broker.keeper.reset_cursor(cursor, Position(sent[2].ledger, sent[2].entry))
        subscription = record(root)
        assert subscription is not None
        assert mark_delete(subscription, rows(root)) == Position(sent[2].ledger, sent[2].entry)
        assert subscription.start_epoch == subscription.owners[0].epoch == cursor.cursor.epoch
        broker.kill()
        other = await CursorBroker.start(root)
        assert left(await other.open("t")) == ids(sent[2:])
        await other.stop()

    asyncio.run(run())


def test_a_seek_into_a_batch_leaves_out_its_first_messages_also_after_a_kill(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=0.5)
        sent = await broker.send("t", [b"x"] * 30, batch=10)
        cursor = await broker.open("t")
        ack(cursor, *sent)
        await broker.keeper.reset_cursor(
            cursor, Position(sent[1].ledger, sent[1].entry), ack_set=0b1111111000, batch_size=10
        )
        broker.kill()
        other = await CursorBroker.start(root)
        again = await other.open("t")
        assert left(again) == ids(sent[1:])
        assert again.cursor.ack_set(sent[1].ledger, sent[1].entry) == 0b1111111000
        await other.stop()

    asyncio.run(run())


def test_a_new_subscription_ignores_the_cursor_of_a_deleted_one_with_its_name(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 5)
        cursor = await broker.open("t")
        ack(cursor, *sent)
        await broker.keeper.save_cursors()
        await broker.keeper.delete_subscription(cursor)
        assert record(root) is None
        with pytest.raises(SubscriptionNotFoundError):
            await cursor.wait_durable()
        assert left(await broker.open("t")) == ids(sent)
        await broker.stop()

    asyncio.run(run())


def test_a_subscription_of_another_live_broker_is_refused_and_the_broker_is_named(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=1.0)
        await broker.send("t", [b"x"])
        await broker.open("t")
        other = await CursorBroker.start(root)
        with pytest.raises(ConsumerBusyError, match=f"'s' on .*/t is held .* {broker.incarnation.id}"):
            await other.open("t")
        await broker.stop()
        await other.open("t")
        await other.stop()

    asyncio.run(run())


def test_the_owner_is_notified_if_another_process_deletes_its_subscription(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root, snapshot_every_s=0.1)
        sent = await broker.send("t", [b"x"])
        cursor = await broker.open("t")
        kept = await broker.open("t", name="kept")
        await asyncio.to_thread(root.delete_subscription, "t", "s", force=True)
        await until(lambda: broker.lost == [cursor])
        ack(cursor, *sent)
        with pytest.raises(SubscriptionNotFoundError, match="deleted while it had consumers"):
            await cursor.wait_durable()
        assert kept.lost is None
        await broker.stop()

    asyncio.run(run())


def test_the_type_of_a_subscription_without_consumers_can_be_changed(root: Root) -> None:
    async def run() -> None:
        broker = await CursorBroker.start(root)
        sent = await broker.send("t", [b"x"] * 3)
        cursor = await broker.open("t", "Shared")
        ack(cursor, sent[1])
        assert await broker.open("t", "Exclusive") is cursor
        subscription = record(root)
        assert subscription is not None
        assert (subscription.type, subscription.owners[0].slots) == ("Exclusive", (0,))
        await broker.keeper.release_subscriptions([cursor])
        again = await broker.open("t", "Failover")
        assert left(again) == ids([sent[0], sent[2]])
        await broker.stop()

    asyncio.run(run())


def test_spark_written_messages_are_read_under_a_brokers_cursor_too(root: Root) -> None:
    messages.write(root, "t", [b"%d" % number for number in range(2_500)])

    async def run() -> None:
        broker = await CursorBroker.start(root)
        cursor = await broker.open("t")
        assert len(left(cursor)) == 3
        cursor.cursor.acknowledge_through(LedgerId(1), EntryId(0))
        cursor.cursor.acknowledge(LedgerId(1), EntryId(1), 1 << 999, 1_000)
        cursor.record_changes()
        await broker.stop()

    asyncio.run(run())
    subscription = record(root)
    assert subscription is not None
    assert mark_delete(subscription, rows(root)) == Position(LedgerId(1), EntryId(1))
