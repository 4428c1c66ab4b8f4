"""A subscription goes between Spark's queries and a broker's clients: every message reaches one of them, none two."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsar_on_spark.broker.cursors.open_cursor import OpenCursor
from pulsar_on_spark.metadata.cursors import WHOLE, CursorRow
from pulsar_on_spark.model.errors import ConsumerBusyError, ConsumerFencedError
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.data_path.tail import Tail
from tests.kit import messages
from tests.kit.cursor_broker import CursorBroker
from tests.kit.micro_batches import Checkpoint, MicroBatchQuery, Point
from tests.kit.waiting import wait_until

LEASE_S = 0.4
BATCH = 5

Ids = set[tuple[int, int, int]]
"""(ledger, entry, batch index) of messages."""


@pytest.fixture
def root(root_with_topic: Root) -> Root:
    return root_with_topic


def query(root: Root, kept: Checkpoint, type_: str, **options: str) -> MicroBatchQuery:
    given = {
        "topic": "t",
        "subscription": "s",
        "subscriptionType": type_,
        "leaseDuration": f"{LEASE_S}s",
        "startingOffsets": "earliest",
        **options,
    }
    return MicroBatchQuery(root.path, kept, given)


def with_broker(root: Root, use: Callable[[CursorBroker], Awaitable[None]], *, kill: bool = False) -> None:
    """A broker for as long as it is used; it then gives back what it has, or is killed."""

    async def run() -> None:
        broker = await CursorBroker.start(root, lease_duration_s=LEASE_S)
        await use(broker)
        if kill:
            broker.kill()
        else:
            await broker.stop()

    asyncio.run(run())


def stored(root: Root, sent: int) -> dict[tuple[int, int, int], bytes]:
    """Every message of the topic by its id. The last are to be seen a moment after they were acknowledged."""
    found: list[messages.Message] = []

    def all_are_there() -> bool:
        with closing(Tail(root)) as tail:
            view = tail.read_view(messages.target(root, "t").parts)
        found[:] = messages.read(root, "t", view=view)
        return len(found) == sent

    wait_until(all_are_there)
    return {(m.id.ledger, m.id.entry, max(m.id.batch_index or 0, 0)): m.value or b"" for m in found}


def rows(root: Root, slot: int) -> list[CursorRow]:
    (part,) = messages.target(root, "t").parts
    return [row for row in root.store.cursors().of(part.topic_id, "s") if row.slot == slot]


def unread(cursor: OpenCursor, batch: int) -> Iterator[tuple[int, int, int]]:
    """Yield the messages that a dispatcher would deliver, if each entry has `batch` messages."""
    for found in cursor.cursor.deliverable(EARLIEST, 1_000_000).ranges:
        for entry in range(found.first, found.end):
            bits = cursor.cursor.ack_set(found.ledger, EntryId(entry)) or (1 << batch) - 1
            yield from ((found.ledger, entry, index) for index in range(batch) if bits >> index & 1)


def ack_messages(cursor: OpenCursor, acked: Ids, batch: int) -> None:
    for entry in sorted({(ledger, entry) for ledger, entry, _ in acked}):
        bits = sum(1 << index for index in range(batch) if (*entry, index) not in acked)
        cursor.cursor.acknowledge(LedgerId(entry[0]), EntryId(entry[1]), bits, batch)
    cursor.record_changes()


BATCH = 5


class Both:
    """Messages are sent, and taken by clients of a broker and by queries of Spark, as chance has it."""

    def __init__(self, root: Root, type_: str, seed: str, *, kill: bool) -> None:
        self.root = root
        self.type = type_
        self.chance = random.Random(seed)
        self.kill = kill
        self.sent: list[bytes] = []
        self.by_clients: Counter[bytes] = Counter()
        self.checkpoints = [Checkpoint(), Checkpoint()]

    @property
    def by_spark(self) -> Counter[bytes]:
        return Counter(value for kept in self.checkpoints for value in kept.values)  # type: ignore[misc]

    def clients(self) -> None:
        """Messages are sent, and some of what is there is acknowledged, one by one."""

        async def use(broker: CursorBroker) -> None:
            added = [b"%06d" % number for number in range(len(self.sent), len(self.sent) + 200)]
            self.sent += added
            await broker.send("t", added, keys=[b"k%d" % self.chance.randrange(30) for _ in added], batch=BATCH)
            cursor = await broker.open("t", self.type)  # type: ignore[arg-type]
            values = await asyncio.to_thread(stored, self.root, len(self.sent))
            left = list(unread(cursor, BATCH))
            assert {values[each] for each in left} == set(self.sent) - self.by_clients.keys() - self.by_spark.keys()
            chosen = {each for each in left if self.chance.random() < 0.5}
            ack_messages(cursor, chosen, BATCH)
            self.by_clients.update(values[each] for each in chosen)
            await cursor.wait_durable()

        with_broker(self.root, use, kill=self.kill)

    def queries(self, count: int) -> None:
        """Each of the queries reads some batches, and all of them are stopped."""
        runs = [query(self.root, kept, self.type, maxMessagesPerTrigger="35") for kept in self.checkpoints[:count]]
        wait_until(lambda: runs[0].run())  # a broker that was killed is recovered first
        for _ in range(self.chance.randrange(4, 10)):
            # One gets ahead of the other: their slots end at different places.
            self.chance.choice(runs).run()
        for run in runs:
            # Spark tells of a committed batch when it asks for the next one; what it did not tell is read again.
            run.reader.latestOffset(json.loads(run.checkpoint.offsets[-1]), ReadAllAvailable())
            run.stop()

    def finish(self) -> None:
        run = query(self.root, self.checkpoints[0], self.type)
        wait_until(lambda: not run.run() and self.by_spark.keys() | self.by_clients.keys() >= set(self.sent))
        run.stop()
        assert max((self.by_spark + self.by_clients).values()) == 1, "some were delivered twice"


@pytest.mark.parametrize("kill", [False, True], ids=["released", "killed"])
@pytest.mark.parametrize(("type_", "count"), [("Exclusive", 1), ("Shared", 2), ("Key_Shared", 2)])
def test_to_and_fro_every_message_is_delivered_once(root: Root, type_: str, count: int, kill: bool) -> None:
    both = Both(root, type_, f"{type_} {kill}", kill=kill)
    for _ in range(3):
        both.clients()
        both.queries(count)
    both.finish()


def acked_one_by_one(root: Root, type_: str, *, sent: int = 200, every: int = 3) -> tuple[list[bytes], list[bytes]]:
    """A broker's clients acknowledge every third message and nothing else: (what is left, what was acknowledged)."""
    acked: list[bytes] = []
    values = [b"%06d" % number for number in range(sent)]

    async def use(broker: CursorBroker) -> None:
        await broker.send("t", values, batch=BATCH)
        cursor = await broker.open("t", type_)  # type: ignore[arg-type]
        found = await asyncio.to_thread(stored, root, sent)
        chosen = {each for number, each in enumerate(sorted(found)) if number % every == 1}
        ack_messages(cursor, chosen, BATCH)
        acked.extend(found[each] for each in sorted(chosen))

    with_broker(root, use)
    return sorted(set(values) - set(acked)), acked


def test_a_query_of_another_type_skips_messages_that_clients_acknowledged(root: Root) -> None:
    left, _ = acked_one_by_one(root, "Shared")
    kept = Checkpoint()
    run = query(root, kept, "Exclusive")
    run.run_all()
    assert kept.values == left
    run.stop()


def test_an_offset_names_the_row_of_its_ack_holes_until_they_are_passed(root: Root) -> None:
    left, _ = acked_one_by_one(root, "Exclusive")
    kept = Checkpoint()
    run = query(root, kept, "Exclusive", maxMessagesPerTrigger="50")
    run.run_all()
    messages.write(root, "t", [b"later"])
    run.run_all()
    (row,) = rows(root, WHOLE)
    named = [json.loads(text)["topics"]["persistent://public/default/t"].get("holes") for text in kept.offsets]
    assert named == [[row.epoch, row.n]] * 4 + [None]
    assert kept.values == [*left, b"later"]
    run.stop()


@pytest.mark.parametrize("at", list(Point))
def test_a_batch_that_was_cut_off_is_the_same_at_its_replay(root: Root, at: Point) -> None:
    left, _ = acked_one_by_one(root, "Shared")
    kept = Checkpoint()
    run = query(root, kept, "Shared", maxMessagesPerTrigger="50")
    run.run()
    run.run(at)
    before = dict(kept.sink)
    run.kill()
    again = query(root, kept, "Shared", maxMessagesPerTrigger="50")
    again.run()
    assert kept.sink | before == kept.sink
    again.run_all()
    assert sorted(kept.values) == left  # type: ignore[type-var]
    again.stop()


@pytest.mark.parametrize("every", [3, 1_000], ids=["with holes before", "without"])
def test_messages_acknowledged_after_an_interrupted_batch_are_not_read_again(root: Root, every: int) -> None:
    left, acked = acked_one_by_one(root, "Shared", every=every)
    kept = Checkpoint()
    run = query(root, kept, "Shared", maxMessagesPerTrigger="50")
    run.run()
    run.run(Point.LOGGED)
    run.stop()
    first = list(kept.values)
    more: list[bytes] = []

    async def use(broker: CursorBroker) -> None:
        cursor = await broker.open("t", "Shared")
        found = await asyncio.to_thread(stored, root, len(left) + len(acked))
        chosen = set(list(unread(cursor, BATCH))[:100])
        ack_messages(cursor, chosen, BATCH)
        more.extend(found[each] for each in chosen)

    with_broker(root, use)
    again = query(root, kept, "Shared")
    again.run_all()
    again.stop()
    assert sorted({*first, *more} | {*kept.values}) == left  # type: ignore[type-var]
    assert not set(kept.values[len(first) :]) & set(more)


def test_a_query_waits_to_know_whether_the_broker_is_alive_and_is_then_refused(root: Root) -> None:
    async def use(broker: CursorBroker) -> None:
        await broker.send("t", [b"x"])
        await broker.open("t", "Shared")

        def read() -> None:
            run = query(root, Checkpoint(), "Shared")
            with pytest.raises(ConsumerBusyError, match="held by Pulsar clients"):
                wait_until(run.run)
            run.stop()

        await asyncio.to_thread(read)

    with_broker(root, use)


def test_a_seek_of_clients_ends_a_query_that_was_away_meanwhile(root: Root) -> None:
    acked_one_by_one(root, "Exclusive")
    kept = Checkpoint()
    run = query(root, kept, "Exclusive")
    run.run_all()
    run.stop()

    async def use(broker: CursorBroker) -> None:
        cursor = await broker.open("t", "Exclusive")
        await broker.keeper.reset_cursor(cursor, EARLIEST)

    with_broker(root, use)
    again = query(root, kept, "Exclusive")
    with pytest.raises(ConsumerFencedError, match="reset"):
        again.run()
    again.stop()
    fresh = Checkpoint()
    run = query(root, fresh, "Exclusive")
    run.run_all()
    assert len(fresh.values) == 200, "all of it is read again, holes and all"
    run.stop()


def test_both_faces_and_status_count_the_same_backlog(root: Root) -> None:
    left, _ = acked_one_by_one(root, "Shared")
    (listed,) = root.subscriptions()
    assert listed.backlog_messages == len(left)
    kept = Checkpoint()
    run = query(root, kept, "Shared", maxMessagesPerTrigger="50")
    run.run()
    report = run.reader.reportLatestOffset()
    assert report is not None
    assert report["backlogMessages"] == len(left) - len(kept.values)
    run.stop()
    (listed,) = root.subscriptions()

    async def use(broker: CursorBroker) -> None:
        cursor = await broker.open("t", "Shared")
        assert len(list(unread(cursor, BATCH))) == listed.backlog_messages
        await broker.keeper.save_cursors()
        (held,) = await asyncio.to_thread(root.subscriptions)
        assert (held.backlog_messages, held.consumers) == (
            listed.backlog_messages,
            (f"broker {broker.incarnation.id}",),
        )

    with_broker(root, use)


def test_a_subscription_that_a_live_broker_has_is_not_deleted_without_force(root: Root) -> None:
    async def use(broker: CursorBroker) -> None:
        await broker.open("t", "Shared")

        def delete() -> None:
            with pytest.raises(ConsumerBusyError, match="clients of broker"):
                root.delete_subscription("t", "s")
            root.delete_subscription("t", "s", force=True)

        await asyncio.to_thread(delete)

    with_broker(root, use)
