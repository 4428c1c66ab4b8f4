"""A model of a topic for dispatchers, and functions that drive them."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_on_spark.broker.dispatch.dispatcher import Dispatcher
from pulsar_on_spark.broker.dispatch.values import Ack, Chunk, ConsumerId, ConsumerInfo, Delivery, EntryInfo, Wanted
from pulsar_on_spark.model.ids import EntryId, LedgerId, Position, TopicId
from pulsar_on_spark.topic.managed_ledger.cursor.chain import LedgerChain, LedgerExtent
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord

EntryPosition = tuple[int, int]


class Topic:
    """Entries that are all readable, and the cursor of a subscription on them."""

    def __init__(self, entries: Iterable[EntryInfo] = ()) -> None:
        self.infos: dict[EntryPosition, EntryInfo] = {}
        self.ledgers = [1]
        self.chain = LedgerChain([LedgerExtent(LedgerId(1), 0, False)])
        start = CursorRecord(
            "snapshot", TopicId("0123456789abcdef" * 2), "s", 1, NO_RECORD, Position(LedgerId(1), EntryId(0))
        )
        self.cursor = Cursor(self.chain, start)
        for info in entries:
            self.infos[info.ledger, info.entry] = info
        if self.infos:
            self.chain.grow_ledger(LedgerId(1), len(self.infos))

    def publish(
        self,
        count: int = 1,
        *,
        messages: int = 1,
        key: bytes | None = None,
        deliver_at_ms: int | None = None,
        is_marker: bool = False,
        chunk: Chunk | None = None,
    ) -> list[EntryPosition]:
        ledger = LedgerId(self.ledgers[-1])
        first = self.chain.readable_end(ledger)
        published = []
        for entry in range(first, first + count):
            position = (int(ledger), entry)
            self.infos[position] = EntryInfo(
                ledger, EntryId(entry), messages, 100, key, deliver_at_ms, is_marker, chunk
            )
            published.append(position)
        self.chain.grow_ledger(ledger, first + count)
        return published

    def next_ledger(self) -> None:
        self.ledgers.append(self.ledgers[-1] + 3)
        extents = [LedgerExtent(LedgerId(x), self.chain.readable_end(x), True) for x in self.ledgers[:-1]]
        self.chain = LedgerChain([*extents, LedgerExtent(LedgerId(self.ledgers[-1]), 0, False)])
        self.cursor.apply_chain(self.chain)

    def read(self, wanted: Wanted) -> list[EntryInfo]:
        return [self.infos[x.ledger, entry] for x in wanted.ranges for entry in range(x.first, x.end)]

    def unacked(self) -> list[EntryPosition]:
        return [
            position for position in self.infos if not self.cursor.is_acked(LedgerId(position[0]), EntryId(position[1]))
        ]


def join(dispatcher: Dispatcher, number: int, permits: int = 0, now_ms: int = 0, **said: object) -> ConsumerId:
    consumer = ConsumerId(number)
    said.setdefault("name", f"c{number}")
    dispatcher.add_consumer(ConsumerInfo(consumer, **said), now_ms)  # type: ignore[arg-type]
    dispatcher.flow(consumer, permits)
    return consumer


def pump(dispatcher: Dispatcher, topic: Topic, now_ms: int = 0) -> list[Delivery]:
    """Read and offer until nothing is wanted."""
    deliveries: list[Delivery] = []
    for _ in range(10_000):
        wanted = dispatcher.wanted()
        if wanted is None:
            return deliveries
        deliveries += dispatcher.offer(wanted, topic.read(wanted), now_ms)
    raise AssertionError("it wants and wants")


def positions(deliveries: Iterable[Delivery], consumer: int | None = None) -> list[EntryPosition]:
    return [(x.ledger, x.entry) for x in deliveries if consumer in (None, x.consumer)]


def ack(dispatcher: Dispatcher, consumer: int, *entries: EntryPosition, cumulative: bool = False) -> bool:
    acks = [Ack(LedgerId(ledger), EntryId(entry)) for ledger, entry in entries]
    return dispatcher.ack(ConsumerId(consumer), acks, cumulative=cumulative)


def nack(dispatcher: Dispatcher, consumer: int, *entries: EntryPosition) -> None:
    dispatcher.redeliver(ConsumerId(consumer), [(LedgerId(ledger), EntryId(entry)) for ledger, entry in entries])
