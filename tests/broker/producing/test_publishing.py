"""Runs of entries on the publish path have the outcomes of their entries one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.broker.producing.producer import Producer, Published
from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.producing.publishing import PublishPath, Waiting
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.ledger.journal.groups import EntriesGroup, Filling, JournalLimits
from pulsar_on_spark.model.ids import EntryId, LedgerId, TopicId
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, OpenLedger

LEDGER = LedgerId(7)
TOPIC = TopicId("t")
LIMITS = JournalLimits(group_bytes=200, group_entries=6, waiting_bytes=400, waiting_entries=14)
BUFFER_BYTES = 500


class Incarnation:
    """An incarnation whose journal acknowledges when the test says so, with the journal's groups and room."""

    def __init__(self) -> None:
        self.ledgers = {TOPIC: OpenLedger(cast(TopicPart, None), LEDGER)}
        self.filling = Filling(LIMITS)
        self.can_append = True
        self.waiting = self.waiting_bytes = 0
        self.stored: list[tuple[int, int, bytes]] = []
        self.groups: list[list[int]] = []

    def fitting(self, payloads: Sequence[bytes]) -> int:
        entries, size_bytes = LIMITS.waiting_entries - self.waiting, LIMITS.waiting_bytes - self.waiting_bytes
        return self.filling.fitting(payloads, entries, size_bytes) if self.can_append else 0

    def append(self, topic_id: TopicId, rows: int, ms: int, payloads: Sequence[bytes], context: object) -> None:
        assert len(payloads) <= self.fitting(payloads)
        ledger = self.ledgers[topic_id]
        first = EntryId(ledger.next)
        appended = Appended(ledger, first, len(payloads), context)
        self.filling.add_entries(LEDGER, first, rows, ms, payloads, appended)
        self.stored += [(entry, rows, payload) for entry, payload in enumerate(payloads, first)]
        ledger.next += len(payloads)
        ledger.outstanding += len(payloads)
        self.waiting += len(payloads)
        self.waiting_bytes += sum(map(len, payloads))
        self.can_append = self.waiting < LIMITS.waiting_entries and self.waiting_bytes < LIMITS.waiting_bytes

    def acknowledge(self, path: PublishPath, groups: int) -> None:
        self.filling.close()
        while groups and self.filling.has_closed:
            groups -= 1
            group = self.filling.next_closed()
            assert isinstance(group, EntriesGroup)
            runs = cast(list[Appended[Any]], group.contexts)
            self.groups.append([run.first + number for run in runs for number in range(run.entries)])
            self.waiting -= group.records
            self.waiting_bytes -= group.payload_bytes
            path.on_entries_acknowledged(runs)
        share, had_room = (1 if self.can_append else 2), self.can_append
        is_small = self.waiting * share < LIMITS.waiting_entries
        self.can_append = is_small and self.waiting_bytes * share < LIMITS.waiting_bytes
        if self.can_append and not had_room:
            path.on_journal_room()


@dataclass(eq=False)
class Client:
    """A connection that keeps what is written to it, and how many entries were in flight at most."""

    address: str = "client:1"
    client_version: str = "test"
    is_closed: bool = False
    written: bytes = b""
    pending: int = 0
    most: int = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def pending_changed(self, entries: int) -> None:
        self.pending += entries
        self.most = max(self.most, self.pending)

    def close(self) -> None:
        self.is_closed = True


@dataclass(eq=False)
class Topic:
    """A topic with an open ledger."""

    incarnation: Incarnation
    dedup: None = None
    topic_id: TopicId = TOPIC
    keeps_entries: bool = True
    waiting: deque[Waiting] = field(default_factory=deque)
    published: Published = field(default_factory=Published)
    ends: list[int] = field(default_factory=list)

    def need_ledger(self) -> None:
        raise AssertionError("it is open")

    def on_ledger_grew(self, ledger: LedgerId, end: int) -> None:
        self.ends.append(end)

    def forget_producer(self, producer: Producer) -> None:
        raise AssertionError("it stays")

    def publish_entries(self, producer: Producer, sent: Sent) -> None:
        raise AssertionError("the test publishes on the path")


class World:
    """A publish path with one topic and two producers of one client."""

    def __init__(self) -> None:
        self.gate: list[bool] = []
        self.cache = EntryCache(2_000)
        self.path = PublishPath(self.cache, BUFFER_BYTES, lambda: self.gate.append(self.path.is_open))
        self.incarnation = Incarnation()
        self.topic = Topic(self.incarnation)
        self.client = Client()
        peer = cast(Any, self.client)
        infos = (ProducerInfo(self.client, number, f"p-{number}") for number in range(2))
        self.producers = [Producer(info, peer, cast(Any, self.topic)) for info in infos]
        self.path.start(cast(Any, [self.incarnation]))

    def publish(self, runs: Iterable[Sent]) -> None:
        for run in runs:
            producer = self.producers[run.producer_id]
            if not producer.is_closed:
                self.path.publish_entries(cast(Any, self.topic), producer, run)

    def refuse(self, producer_id: int, sequence_id: int) -> None:
        producer = self.producers[producer_id]
        if not producer.is_closed:
            producer.refuse(producer.take_numbers(1), sequence_id, ServerError.ChecksumError, "broken")

    def close(self, producer_id: int) -> None:
        self.producers[producer_id].is_closed = True
        self.path.drop_closed(cast(Any, self.topic))

    def outcome(self) -> object:
        """Return all that clients, consumers, the journal and metrics can observe."""
        return SimpleNamespace(
            written=self.client.written,
            pending=(self.client.pending, self.client.most, [each.pending for each in self.producers]),
            stored=self.incarnation.stored,
            groups=self.incarnation.groups,
            outstanding=self.incarnation.ledgers[TOPIC].outstanding,
            waiting=[each for _, number, run in self.topic.waiting for each in enumerate(run.singles(), number)],
            bytes=(self.path.pending_bytes, self.path.is_open, self.gate),
            ends=self.topic.ends,
            published=[
                (each.messages, each.bytes)
                for each in (self.topic.published, *(each.published for each in self.producers))
            ],
            cached=[self.cache.get(LEDGER, EntryId(entry)) for entry in range(len(self.incarnation.stored))],
        )


sizes = st.lists(st.sampled_from([0, 1, 30, 100, 250]), min_size=1, max_size=20)
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from([1, 3]), sizes, st.lists(st.integers(1, 19))),
    st.tuples(st.just("acknowledge"), st.integers(1, 4)),
    st.tuples(st.just("refuse"), st.integers(0, 1)),
    st.tuples(st.just("close"), st.just(1)),
)


def cut(run: Sent, places: Iterable[int]) -> Iterable[Sent]:
    """Return the pieces of a run that is cut at some places."""
    done = 0
    for place in sorted(set(places)):
        if place - done < len(run.entries):
            piece, run = run.cut(place - done)
            done = place
            yield piece
    yield run


@settings(max_examples=300)
@given(st.lists(steps, max_size=12))
def test_runs_cut_anywhere_have_the_outcomes_of_single_entries(done: list[tuple[Any, ...]]) -> None:
    worlds = [World() for _ in range(3)]
    sequence_id = 0
    for step in done:
        match step:
            case "send", producer_id, messages, lengths, places:
                entries = [bytes([number]) * length for number, length in enumerate(lengths)]
                run = Sent(producer_id, sequence_id, 0, messages, False, False, 0, 0, entries, True)
                sequence_id += messages * len(entries)
                for world, pieces in zip(worlds, (run.singles(), cut(run, places), [run]), strict=True):
                    world.publish(pieces)
            case "acknowledge", groups:
                for world in worlds:
                    world.incarnation.acknowledge(world.path, groups)
            case "refuse", producer_id:
                for world in worlds:
                    world.refuse(producer_id, sequence_id)
                sequence_id += 1
            case "close", producer_id:
                for world in worlds:
                    world.close(producer_id)
        singles, *others = (world.outcome() for world in worlds)
        assert others == [singles] * 2
