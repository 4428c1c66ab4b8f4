"""The stream reader under subscriptions: several queries in one process, driven as Spark drives them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict

import pytest

from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.model.errors import (
    ConsumerBusyError,
    ConsumerFencedError,
    SubscriptionNotFoundError,
)
from pulsar_on_spark.model.hashing import murmur3_32
from pulsar_on_spark.model.ids import Position
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.managed_ledger.subscription.positions import mark_delete
from tests.kit.messages import write
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point

LEASE_S = 0.4


@pytest.fixture
def root(root_with_topic: Root) -> Root:
    return root_with_topic


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def query(root: Root, kept: Checkpoint, type_: str = "Exclusive", *, available_now: bool = False, **options: str):
    given = {
        "topic": "t",
        "subscription": "s",
        "subscriptionType": type_,
        "leaseDuration": f"{LEASE_S}s",
        "startingOffsets": "earliest",
        **options,
    }
    return MicroBatchQuery(
        root.path, kept, {name: value for name, value in given.items() if value}, available_now=available_now
    )


def record(root: Root, topic: str = "t", name: str = "s") -> SubscriptionRecord | None:
    (found,) = [each for each in root.topics() if each.name.endswith(f"/{topic}")]
    return root.store.view().get(SubscriptionRecord, f"{found.topic_id}/{name}")


def cursor(root: Root) -> Position:
    found = record(root)
    assert found is not None
    return mark_delete(found, root.store.cursors().of(found.topic_id, "s"))


def run_for(run: MicroBatchQuery, seconds: float) -> int:
    """Looks and batches for so long; returns how many batches."""
    until_s = time.monotonic() + seconds
    batches = 0
    while time.monotonic() < until_s:
        batches += run.run()
    return batches


# -- where a subscription starts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": ""}, 0),
        ({"startingOffsets": "", "subscriptionInitialPosition": "earliest"}, 10),
        ({"startingOffsets": "latest", "subscriptionInitialPosition": "earliest"}, 0),
        ({"startingOffsets": "earliest", "subscriptionInitialPosition": "latest"}, 10),
    ],
)
def test_a_new_subscription_starts_where_the_options_say(root: Root, options: dict[str, str], expected: int):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    query(root, kept, available_now=True, **options).run_all()
    assert len(kept.values) == expected


def test_the_cursor_wins_over_the_options_and_the_checkpoint_over_the_cursor(root: Root):
    write(root, "t", numbered(0, 10))
    first = Checkpoint()
    run = query(root, first)
    run.run_all()
    run.stop()
    write(root, "t", numbered(10, 10))
    for options in ({"startingOffsets": "earliest"}, {"startingOffsets": "latest"}):
        kept = Checkpoint()
        run = query(root, kept, **options)
        run.run_all()
        run.stop()
        # A query without its checkpoint continues at the cursor; the second one finds nothing left.
        assert kept.values == (numbered(10, 10) if options["startingOffsets"] == "earliest" else [])
    assert cursor(root) == Position(1, 2)
    # The first query has not read 10 to 19: its checkpoint says so, and the cursor is past them.
    run = query(root, first)
    run.run_all()
    assert first.values == numbered(0, 10)


def test_no_subscription_makes_no_cursor_and_no_lease(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    MicroBatchQuery(root.path, kept, {"topic": "t", "startingOffsets": "earliest"}).run_all()
    assert len(kept.values) == 10
    assert record(root) is None
    assert not list((root.path / "leases").rglob("*.json"))


def test_a_prefix_makes_a_subscription_that_expires(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    options = {"subscription": "", "subscriptionPrefix": "temp"}
    run = query(root, kept, **options)
    run.run_all()
    run.stop()
    name = f"temp-{json.loads(kept.offsets[0])['consumer']}"
    found = record(root, name=name)
    assert found is not None
    assert found.expires_after_s is not None
    write(root, "t", numbered(10, 10))
    again = query(root, kept, **options)
    again.run_all()
    assert kept.values == numbered(0, 20)
    assert len(root.subscriptions()) == 1


def test_a_partition_created_without_readers_starts_at_its_earliest_message(root: Root):
    root.create_topic("p", 2)
    first = Checkpoint()
    run = query(root, first, topic="p")
    run.run_all()
    run.stop()
    root.add_partitions("p", 4)
    write(root, "p", numbered(0, 100), [b"key%d" % number for number in range(100)])
    kept = Checkpoint()  # without its checkpoint, too
    query(root, kept, topic="p", startingOffsets="latest").run_all()
    assert sorted(kept.values) == numbered(0, 100)


def test_new_partitions_and_topics_under_a_running_query_start_at_their_earliest_message(root: Root):
    root.create_topic("clicks-a", 1)
    kept = Checkpoint()
    run = query(root, kept, "Shared", topic="", topicsPattern="clicks-.*", startingOffsets="latest")
    run.run_all()
    root.add_partitions("clicks-a", 3)
    root.create_topic("clicks-b")
    write(root, "clicks-a", numbered(0, 100), [b"key%d" % number for number in range(100)])
    write(root, "clicks-b", numbered(100, 10))
    run.run_all()
    assert sorted(kept.values) == numbered(0, 110)


# -- when the cursor moves -----------------------------------------------------------------------------------------


def test_the_cursor_moves_only_when_spark_has_committed_the_batch(root: Root):
    for first in (0, 10, 20):
        write(root, "t", numbered(first, 10))
    kept = Checkpoint()
    run = query(root, kept, available_now=True, maxMessagesPerTrigger="10")
    run.run()
    assert cursor(root) == Position(0, 0)  # batch 0 is in the commit log, and Spark has not said so yet
    run.run(stop_at=Point.WRITTEN)
    assert cursor(root) == Position(1, 1)
    run.kill()
    again = query(root, kept, available_now=True, maxMessagesPerTrigger="10")
    again.run()
    assert cursor(root) == Position(1, 1)
    again.run_all()
    # Spark never commits AvailableNow's last batch; the next latestOffset shows that it is committed.
    assert cursor(root) == Position(1, 3)
    assert kept.values == numbered(0, 30)


def test_a_busy_query_moves_its_cursor_at_most_once_a_second(root: Root):
    for first in range(0, 200, 10):
        write(root, "t", numbered(first, 10))
    run = query(root, Checkpoint(), maxMessagesPerTrigger="10")
    began_s = time.monotonic()
    moves: set[Position] = set()
    while run.run():
        moves.add(cursor(root))
    assert len(moves) <= time.monotonic() - began_s + 2
    assert cursor(root) == Position(1, 20)


def test_batch_zero_replayed_after_the_cursor_moved_loses_nothing(root: Root):
    """Pitfall D4, literally: a query dies before batch 0 is committed, another one moves the cursor, it comes back."""
    write(root, "t", numbered(0, 10))
    first, second = Checkpoint(), Checkpoint()
    run = query(root, first, "Failover", maxMessagesPerTrigger="10")
    run.run(stop_at=Point.WRITTEN)
    first.sink.clear()  # nor did its sink keep anything
    run.kill()
    write(root, "t", numbered(10, 10))
    other = query(root, second, "Failover")
    run_for(other, 3 * LEASE_S)
    assert second.values == numbered(0, 20)
    other.stop()
    assert cursor(root) == Position(1, 2)
    back = query(root, first, "Failover")
    back.run_all()
    assert first.values == numbered(0, 10)


# -- Exclusive -----------------------------------------------------------------------------------------------------


def test_a_second_live_query_is_refused_within_about_a_lease_period(root: Root):
    active = query(root, Checkpoint())
    active.run_all()
    second = query(root, Checkpoint())
    began_s = time.monotonic()
    with pytest.raises(ConsumerBusyError, match=r"'s' on topic .* is Exclusive and consumer '.*' is reading it: stop"):
        run_for(second, 60)
    assert time.monotonic() - began_s >= LEASE_S
    assert not second.checkpoint.values
    active.run()
    # Trigger.AvailableNow is refused as well, rather than end with nothing.
    with pytest.raises(ConsumerBusyError):
        query(root, Checkpoint(), available_now=True).run()


def test_the_same_consumer_reacquires_its_subscription_at_once(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, leaseDuration="1 hour")
    run.run_all()
    run.kill()
    write(root, "t", numbered(10, 10))
    again = query(root, kept, leaseDuration="1 hour")
    assert again.run()
    assert kept.values == numbered(0, 20)
    # So does a query without a checkpoint that goes by the same name; the first one may not go on.
    named = query(root, Checkpoint(), leaseDuration="1 hour", consumerName=json.loads(kept.offsets[0])["consumer"])
    named.run_all()
    with pytest.raises(ConsumerFencedError, match="another process took over as the same consumer"):
        again.run_all()


def test_a_killed_querys_lease_runs_out(root: Root):
    write(root, "t", numbered(0, 10))
    run = query(root, Checkpoint())
    run.run_all()
    run.kill()
    write(root, "t", numbered(10, 10))
    kept = Checkpoint()
    other = query(root, kept, available_now=True)
    other.run_all()
    assert kept.values == numbered(10, 10)


def test_a_released_subscription_is_free_at_once(root: Root):
    run = query(root, Checkpoint(), leaseDuration="1 hour")
    run.run_all()
    run.stop()
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    assert query(root, kept, leaseDuration="1 hour").run()
    assert len(kept.values) == 10


def test_a_lease_outlives_a_long_micro_batch(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept)
    run.run(stop_at=Point.PLANNED)
    refused: list[str] = []

    def intrude() -> None:
        other = query(root, Checkpoint())
        try:
            run_for(other, 3 * LEASE_S)
        except ConsumerBusyError as error:
            refused.append(str(error))

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()  # all the while the batch runs, and Spark calls nothing of the reader
    assert refused
    run.run()
    run.run_all()
    assert kept.values == numbered(0, 10)


def test_a_paused_query_that_lost_the_subscription_is_fenced(root: Root):
    write(root, "t", numbered(0, 10))
    paused = query(root, Checkpoint())
    paused.run()
    paused.kill()
    other = query(root, Checkpoint(), available_now=True)
    other.run_all()
    with pytest.raises(ConsumerFencedError, match="another consumer took it"):
        paused.run()
    before = cursor(root)
    paused.stop()
    assert cursor(root) == before


# -- Failover ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_a_standby_makes_no_batches_and_takes_over_at_the_cursor(root: Root, killed: bool):
    write(root, "t", numbered(0, 10))
    active, standby = Checkpoint(), Checkpoint()
    # A lease that somebody is killed with runs out; one that was given back doesn't have to.
    lease = f"{LEASE_S}s" if killed else "1 hour"
    first = query(root, active, "Failover", leaseDuration=lease)
    first.run()
    second = query(root, standby, "Failover", leaseDuration=lease)
    assert run_for(second, 2 * LEASE_S) == 0
    assert len(standby.offsets) == 1  # Spark's own empty batch 0
    first.run_all()
    write(root, "t", numbered(10, 10))
    assert run_for(second, LEASE_S) == 0
    first.kill() if killed else first.stop()
    began_s = time.monotonic()
    while not second.run():
        assert time.monotonic() < began_s + 60
    took_s = time.monotonic() - began_s
    assert standby.values == numbered(10, 10)
    assert not killed or took_s > LEASE_S / 2


def test_available_now_as_a_standby_ends_without_rows(root: Root):
    active = query(root, Checkpoint(), "Failover")
    active.run_all()
    write(root, "t", numbered(0, 10))
    standby = Checkpoint()
    assert query(root, standby, "Failover", available_now=True).run_all() == 0
    active.run_all()
    assert len(active.checkpoint.values) == 10


# -- Shared and Key_Shared -----------------------------------------------------------------------------------------


def fill(root: Root, count: int, writes: int = 6) -> None:
    for index in range(writes):
        values = numbered(index * count, count)
        write(root, "t", values, [b"key-%d" % (int(value) % 97) for value in values])


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_several_queries_together_have_every_message_once(root: Root, type_: str):
    kept = [Checkpoint() for _ in range(3)]
    runs = [query(root, each, type_) for each in kept]
    for run in runs:  # all have joined before there is anything to read
        run.run()
    for _ in range(3):
        for run in runs:
            run.run()
    owners = Counter(owner.consumer for owner in record(root).owners for _ in owner.slots)
    assert sorted(owners.values()) == [21, 21, 22]
    fill(root, 200)
    order = random.Random(7)
    for _ in range(12):
        order.choice(runs).run()
    for run in runs:
        run.run_all()
    assert sorted(value for each in kept for value in each.values) == numbered(0, 1_200)
    if type_ == "Key_Shared":
        check_keys([[each.rows for each in kept]])


def check_keys(groups: list[list[list[dict[str, object]]]]) -> None:
    """Every key is read by one query, in the order in which it was written."""
    for readers in groups:
        seen: dict[object, set[int]] = defaultdict(set)
        for number, rows in enumerate(readers):
            last: dict[object, object] = {}
            for row in rows:
                key, value = row["__key"], row["value"]
                assert last.get(key, b"") < value
                last[key] = value
                seen[key].add(number)
        assert all(len(numbers) == 1 for numbers in seen.values())
        assert len(seen) > len(readers)


def test_key_shared_uses_the_brokers_hash(root: Root):
    import pyarrow as pa

    fill(root, 100, writes=1)
    kept = Checkpoint()
    query(root, kept, "Key_Shared").run_all()
    keys = sorted({row["__key"] for row in kept.rows})
    slots = murmur3_32(pa.array(keys, pa.binary())) % 64
    (range_,) = json.loads(kept.offsets[0])["topics"]["persistent://public/default/t"]["groups"]
    assert range_["slots"] == "0-63"
    assert len(set(slots.tolist())) > 30


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_joins_and_leaves_move_slots_without_doubling_anything(root: Root, type_: str):
    fill(root, 200, writes=2)
    one, two, three = Checkpoint(), Checkpoint(), Checkpoint()
    first = query(root, one, type_, maxMessagesPerTrigger="150")
    first.run()
    second = query(root, two, type_)
    for _ in range(4):
        second.run()
        first.run()
    fill_from(root, 400, 200)
    third = query(root, three, type_)
    for _ in range(3):
        for run in (third, second, first):
            run.run()
    second.run_all()
    second.stop()
    fill_from(root, 600, 200)
    for _ in range(2):
        first.run_all()
        third.run_all()
    delivered = sorted(value for each in (one, two, three) for value in each.values)
    assert delivered == numbered(0, 800)
    assert all(each.values for each in (one, two, three))


def fill_from(root: Root, first: int, count: int) -> None:
    values = numbered(first, count)
    write(root, "t", values, [b"key-%d" % (int(value) % 97) for value in values])


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("point", list(Point))
def test_a_killed_query_loses_no_message(root: Root, type_: str, point: Point):
    one, two = Checkpoint(), Checkpoint()
    first, second = query(root, one, type_), query(root, two, type_)
    for _ in range(3):
        first.run()
        second.run()
    fill(root, 100)
    first.run()
    fill_from(root, 600, 100)
    first.run(stop_at=point)
    first.kill()
    run_for(second, 3 * LEASE_S)
    delivered = Counter([*one.values, *two.values])
    assert sorted(delivered) == numbered(0, 700)
    # Across the takeover messages may come twice, but only those of batches that the killed query had not settled.
    assert all(count <= 2 for count in delivered.values())


def test_a_batch_reads_each_stored_batch_once_however_slots_lie(root: Root):
    """After takeovers a consumer's slots have several epochs and positions."""
    fill(root, 100)
    checkpoints = [Checkpoint() for _ in range(3)]
    runs = [
        query(root, each, "Shared", maxMessagesPerTrigger=str(limit))
        for each, limit in zip(checkpoints, (50, 170, 400), strict=True)
    ]
    for _ in range(3):
        for run in runs:
            run.run()
    runs[1].stop()
    runs[2].stop()
    last = runs[0]
    last.run()
    last._idle = False
    end = json.loads(last.checkpoint.offsets[-1])
    groups = end["topics"]["persistent://public/default/t"]["groups"]
    assert len({group["epoch"] for group in groups}) > 1
    planned = last.reader.partitions(end, end)
    places = [
        (piece.slice.segment.record_id, entry)
        for part in planned
        for piece in part.pieces
        for entry in range(piece.slice.first, piece.slice.end)
    ]
    assert len(places) == len(set(places)) > 0


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_slots_released_by_an_ending_query_are_read_in_the_same_run(root: Root, type_: str):
    fill(root, 50)
    kept, nothing = Checkpoint(), Checkpoint()
    first = query(root, kept, type_, available_now=True, maxMessagesPerTrigger="50")
    first.run()
    second = query(root, nothing, type_, available_now=True)
    assert second.run_all() == 0  # all slots are the first one's, which is alive
    first.run()  # gives half of them back: the second one has not released its lease yet
    assert len({owner.consumer for owner in record(root).owners}) == 2
    first.run_all()
    second.stop()
    assert sorted(kept.values) == numbered(0, 300)


# -- types, resets, deletions --------------------------------------------------------------------------------------


def test_the_type_changes_without_live_consumers(root: Root):
    write(root, "t", numbered(0, 10))
    exclusive = query(root, Checkpoint())
    exclusive.run_all()
    refused = query(root, Checkpoint(), "Shared")
    with pytest.raises(ConsumerBusyError, match="is Exclusive, and this query asks for Shared"):
        run_for(refused, 3 * LEASE_S)
    refused.stop()  # as Spark's runner does after an error
    exclusive.stop()
    write(root, "t", numbered(10, 10))
    kept = Checkpoint()
    shared = query(root, kept, "Shared")
    shared.run_all()
    assert kept.values == numbered(10, 10)
    assert record(root).type == "Shared"
    shared.kill()
    failover = Checkpoint()
    write(root, "t", numbered(20, 10))
    query(root, failover, "Failover", available_now=True).run_all()  # waits until the killed one's lease has run out
    assert failover.values == numbered(20, 10)


def test_a_subscription_deleted_under_a_query_is_an_error(root: Root):
    run = query(root, Checkpoint())
    run.run_all()
    root.delete_subscription("t", "s", force=True)
    with pytest.raises(
        SubscriptionNotFoundError, match=r"'s' on .* was deleted under this query: restart the query with a new"
    ):
        run.run()
    run.stop()  # and nothing comes back by that
    assert record(root) is None


def test_a_subscription_deleted_and_created_again_fences_its_query(root: Root):
    write(root, "t", numbered(0, 10))
    run = query(root, Checkpoint())
    run.run_all()
    root.delete_subscription("t", "s", force=True)
    fresh = Checkpoint()
    other = query(root, fresh)
    other.run_all()
    other.stop()
    assert len(fresh.values) == 10
    with pytest.raises(ConsumerFencedError, match="cursor was reset"):
        run.run()


def test_a_topic_made_again_is_read_from_its_start_where_losses_are_allowed(root: Root):
    write(root, "t", numbered(0, 10))
    kept = Checkpoint()
    run = query(root, kept, failOnDataLoss="false")
    run.run_all()
    root.delete_topic("t", force=True)
    run.run()
    root.create_topic("t")
    write(root, "t", numbered(10, 10))
    run.run_all()
    assert kept.values == numbered(0, 20)
    run.stop()
