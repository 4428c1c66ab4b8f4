"""Replication from another cluster, by a replicator made by hand: each entry is stored once, and receipts say what."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_on_spark.broker.producing.replicated import MARKER_RECEIPT
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.records import DedupRecord, LedgerRecord, TopicRecord
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.root import Root
from tests.broker.clients.conftest import WAIT_MS
from tests.broker.clients.raw_replicator import Receipt, Replicator, replicated_entry
from tests.broker.clients.test_durable import expect_stored, stored
from tests.kit.running_broker import RunningBroker

ON = {"broker_deduplication_enabled": "true"}
SNAPSHOT_REQUEST = 10


def run(scene: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, WAIT_MS / 1000))


@pytest.fixture
def deduplicated(admin: httpx.Client, topic: str) -> str:
    """A topic's full name; deduplication is on."""
    admin.put(f"/persistent/public/default/{topic}").raise_for_status()
    admin.post(f"/persistent/public/default/{topic}/deduplicationEnabled", json=True).raise_for_status()
    return f"persistent://public/default/{topic}"


def of_two_producers() -> list[bytes]:
    """Twenty entries; each of their producers counts from 0."""
    return [
        replicated_entry(b"%d" % number, (7, number), producer="pq"[number % 2], sequence_id=number // 2)
        for number in range(20)
    ]


VALUES = [b"%d" % number for number in range(20)]


def test_receipts_name_source_positions_and_earlier_positions_are_not_stored(
    broker: RunningBroker, deduplicated: str
) -> None:
    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated)
        made = await peer.produce()
        assert (made.last_sequence_id, made.schema_version) == (-1, b"")
        first = replicated_entry(b"v", (7, 1), sequence_id=99)
        (receipt,) = await peer.replicate([first])
        assert receipt[:2] == (7, 1)
        assert receipt.entry >= 0
        assert await peer.replicate([first, replicated_entry(b"w", (7, 0))]) == [
            Receipt(7, 1, -1, -1),
            Receipt(7, 0, -1, -1),
        ]
        assert [each[:2] for each in await peer.replicate([replicated_entry(b"x", (12, 0))])] == [(12, 0)]
        peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, [b"v", b"x"])


def test_entries_of_many_producers_are_all_stored_once(broker: RunningBroker, deduplicated: str) -> None:
    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated)
        await peer.produce()
        assert [each[:2] for each in await peer.replicate(of_two_producers())] == [(7, number) for number in range(20)]
        again = await peer.replicate(of_two_producers())
        assert [each[2:] for each in again] == [(-1, -1)] * 20
        peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, VALUES)


def test_each_source_counts_by_itself(broker: RunningBroker, deduplicated: str) -> None:
    async def scene() -> None:
        for source in ("east", "west"):
            peer = await Replicator.connect(broker.url, deduplicated, source)
            await peer.produce()
            (receipt,) = await peer.replicate([replicated_entry(source.encode(), (3, 0), source=source)])
            assert receipt.entry >= 0
            peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, [b"east", b"west"])


def test_receipts_name_source_positions_without_deduplication_too(broker: RunningBroker, topic: str) -> None:
    async def scene() -> None:
        peer = await Replicator.connect(broker.url, topic)
        await peer.produce()
        receipts = await peer.replicate([replicated_entry(b"v", (7, 1))] * 2)
        assert [each[:2] for each in receipts] == [(7, 1)] * 2
        assert all(each.entry >= 0 for each in receipts)
        peer.close()

    run(scene())
    expect_stored(broker.root, topic, [b"v", b"v"])


UNPLACED = {
    "no position": replicated_entry(b"v"),
    "a position of no source": replicated_entry(b"v", (7, 1), source=""),
    "the position of another source": replicated_entry(b"v", (7, 1), source="other"),
    "no number": replicated_entry(b"v", (7, -1)),
    "a number beyond any id": replicated_entry(b"v", (7, 1 << 63)),
    "no metadata": b"\x00\x00\x00\x01\xff",
}


@pytest.mark.parametrize("is_deduplicated", [True, False], ids=["deduplicated", "not"])
def test_an_entry_without_its_place_is_refused(
    broker: RunningBroker, admin: httpx.Client, topic: str, is_deduplicated: bool
) -> None:
    admin.put(f"/persistent/public/default/{topic}").raise_for_status()
    admin.post(f"/persistent/public/default/{topic}/deduplicationEnabled", json=is_deduplicated).raise_for_status()

    async def scene() -> None:
        peer = await Replicator.connect(broker.url, f"persistent://public/default/{topic}")
        for what, entry in UNPLACED.items():
            await peer.produce()
            peer.send(entry, 5)
            said = await peer.answer()
            assert said.type == BaseCommand.SEND_ERROR, what
            assert (said.send_error.error, said.send_error.sequence_id) == (ServerError.PersistenceError, 5)
            assert (await peer.answer()).type == BaseCommand.CLOSE_PRODUCER
        peer.close()

    run(scene())
    assert stored(broker.root, topic) == []


@pytest.mark.parametrize("refused", ["damaged", "too large"])
def test_entries_after_a_refused_one_are_not_stored_before_it(
    broker: RunningBroker, admin: httpx.Client, deduplicated: str, topic: str, refused: str
) -> None:
    """Else it would be taken for a duplicate when it comes again: it is below the highest one."""
    entries = of_two_producers()
    bad = entries[1][:-1] + b"?"
    if refused == "too large":
        admin.post(f"/persistent/public/default/{topic}/maxMessageSize", json=1_000).raise_for_status()
        bad = replicated_entry(bytes(2_000), (7, 1))

    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated)
        await peer.produce()
        assert [each[:2] for each in await peer.replicate(entries[:1])] == [(7, 0)]
        for entry in (bad, *entries[2:]):
            peer.send(entry)
        said = await peer.answer()
        assert (said.type, said.send_error.error) == (BaseCommand.SEND_ERROR, ServerError.PersistenceError)
        assert (await peer.answer()).type == BaseCommand.CLOSE_PRODUCER
        await peer.produce()
        assert [each[:2] for each in await peer.replicate(entries[1:])] == [(7, number) for number in range(1, 20)]
        peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, VALUES)


def test_markers_are_stored_each_time_and_count_as_no_message(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, deduplicated: str, topic: str
) -> None:
    marker = replicated_entry(b"", producer="pulsar.marker", marker_type=SNAPSHOT_REQUEST)

    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated)
        await peer.produce()
        for _ in range(2):
            peer.send(marker, 4, marker=True)
            receipt = await peer.receipt()
            assert receipt[:2] == (4, MARKER_RECEIPT)
            assert receipt.entry >= 0
        await peer.replicate([replicated_entry(b"v", (7, 1))])
        peer.send(replicated_entry(b"", producer="pulsar.txn", marker_type=22), marker=True)
        assert (await peer.answer()).send_error.error == ServerError.PersistenceError, "no marker of subscriptions"
        peer.close()

    run(scene())
    stats = admin.get(f"/persistent/public/default/{topic}/stats").json()
    assert stats["msgInCounter"] == 1
    consumer = client.subscribe(deduplicated, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(WAIT_MS).data() == b"v"


def test_an_older_replicator_is_deduplicated_by_sequence_ids(broker: RunningBroker, deduplicated: str) -> None:
    """Entries carry their producers' names and sequence ids; the command has numbers of its own."""
    entries = [
        replicated_entry(b"%d" % number, producer="pq"[number % 2], sequence_id=number // 2) for number in range(20)
    ]

    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated, by_position=False)
        await peer.produce()
        for number, entry in enumerate(entries):
            peer.send(entry, number // 2)
        receipts = [await peer.receipt() for _ in entries]
        assert [each[:2] for each in receipts] == [(number // 2, 0) for number in range(20)]
        assert [each[2:] for each in await peer.replicate(entries)] == [(-1, -1)] * 20
        peer.send(replicated_entry(b"", producer="pulsar.marker", marker_type=SNAPSHOT_REQUEST), 3, marker=True)
        assert (await peer.receipt())[:2] == (3, 0)
        peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, VALUES)


def test_a_replicator_needs_no_schema_and_no_place_among_producers(
    broker: RunningBroker, admin: httpx.Client, client: pulsar.Client, deduplicated: str, topic: str
) -> None:
    path = f"/persistent/public/default/{topic}"
    admin.post(f"{path}/schemaValidationEnforced", json=True).raise_for_status()
    admin.post(f"{path}/maxProducers", json=1).raise_for_status()
    text = pulsar.schema.StringSchema()
    owner = client.create_producer(deduplicated, schema=text, access_mode=pulsar.ProducerAccessMode.Exclusive)

    async def scene() -> None:
        peer = await Replicator.connect(broker.url, deduplicated)
        assert (await peer.produce()).producer_ready
        await peer.replicate(of_two_producers())
        owner.send("mine")
        owner.close()
        client.create_producer(deduplicated, schema=text, access_mode=pulsar.ProducerAccessMode.Exclusive).send("again")
        peer.close()

    run(scene())
    expect_stored(broker.root, deduplicated, [*VALUES, b"mine", b"again"])


def test_a_reload_a_kill_and_a_snapshot_neither_lose_nor_double_messages(tmp_path: Path) -> None:
    root, topic = tmp_path / "root", "persistent://public/default/t"
    entries = of_two_producers()

    async def replicate(broker: RunningBroker, entries: list[bytes]) -> list[Receipt]:
        peer = await Replicator.connect(broker.url, topic)
        await peer.produce()
        receipts = await peer.replicate(entries)
        peer.close()
        return receipts

    async def killed(broker: RunningBroker) -> None:
        """The broker has the rest of the entries, and may have answered none of them."""
        peer = await Replicator.connect(broker.url, topic)
        await peer.produce()
        for entry in entries:
            peer.send(entry)
        for _ in range(12):
            await peer.receipt()
        broker.kill()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await peer.receipt()

    broker = RunningBroker(root, ON)
    asyncio.run(replicate(broker, entries[:5]))
    httpx.put(f"{broker.web_url}/admin/v2/persistent/public/default/t/unload").raise_for_status()
    again = asyncio.run(replicate(broker, entries[:6]))
    assert [each.entry >= 0 for each in again] == [False] * 5 + [True]
    asyncio.run(killed(broker))
    with RunningBroker(root, ON) as broker:
        again = asyncio.run(replicate(broker, entries))
        assert [each.entry for each in again[:12]] == [-1] * 12
    assert stored(root, topic) == VALUES

    set_snapshot(Root.open(root), topic, {"peer": (7, 25)})
    with RunningBroker(root, ON) as broker:
        later = [replicated_entry(b"%d" % number, (7, number)) for number in (25, 26)]
        assert [each.entry >= 0 for each in asyncio.run(replicate(broker, later))] == [False, True]
    assert stored(root, topic) == [*VALUES, b"26"]


def set_snapshot(root: Root, topic: str, positions: dict[str, tuple[int, int]]) -> None:
    """Imitate a snapshot of the deduplication at the topic's end, with nothing left to replay."""
    view = root.store.view()
    record = view.get(TopicRecord, topic)
    assert record is not None
    last = view.all(LedgerRecord, record.topic_id)[-1].ledger_id
    saved = DedupRecord(topic_id=record.topic_id, ledger=last, entry=1_000, sequence_ids={}, positions=positions)
    root.store.commit(lambda _: Change(puts=[saved], keys={keys.topic(topic): None}))
