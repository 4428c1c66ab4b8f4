"""Messages whose text fields are not UTF-8: they are delivered by their bytes, and the messages behind them, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.messages import MessageMetadata
from tests.broker.clients.raw import answer_and_entry, answer_of, command, connect
from tests.kit.pulsar_entries import ClientMessage, join_entry, single_entry
from tests.kit.running_broker import RunningBroker

LIMIT_S = 120
HEAD = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
POISONS = [
    join_entry(HEAD + b"\x32\x01\xff", b"v"),  # partition_key
    join_entry(HEAD + b"\x0a\x02\xff\xfe", b"v"),  # producer_name
    join_entry(HEAD + b"\x22\x0a\x0a\x03\xff\xfe\xfd\x12\x03\xff\xff\xff", b"v"),  # a property
    join_entry(HEAD + b"\xd2\x01\x01\xff\xd8\x01\x02\xe8\x01\x00", b"v"),  # uuid of a chunk
    join_entry(b"\xff\xff", b"v"),  # no metadata at all
]
LAST = single_entry(ClientMessage(b"good"))
SUBSCRIPTIONS = [
    CommandSubscribe(subscription="exclusive", subType=CommandSubscribe.Exclusive),
    CommandSubscribe(subscription="shared", subType=CommandSubscribe.Shared),
    CommandSubscribe(subscription="key-shared", subType=CommandSubscribe.Key_Shared),
    CommandSubscribe(subscription="reader", subType=CommandSubscribe.Exclusive, durable=False),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("texts") / "root") as running:
        yield running


@pytest.mark.parametrize(
    ("domain", "is_early"), [("persistent", True), ("persistent", False), ("non-persistent", True)]
)
def test_every_subscription_gets_messages_whose_text_is_none(
    broker: RunningBroker, domain: str, is_early: bool
) -> None:
    topic = f"{domain}://public/default/texts-{is_early}"

    async def play() -> None:
        producer = await _produced(broker, topic)
        consumers = [await _consumer(broker, topic, each) for each in SUBSCRIPTIONS] if is_early else []
        for number, entry in enumerate([*POISONS, LAST]):
            sending = CommandSend(producer_id=1, sequence_id=number, num_messages=1)
            frame = BaseCommand(type=BaseCommand.SEND, send=sending).SerializeToString()
            producer[1].write(frame_of(frame, len(entry)) + entry)
        for number in range(len(POISONS) + 1):
            assert (await answer_of(producer[0], "SEND_RECEIPT")).send_receipt.sequence_id == number
        consumers = consumers or [await _consumer(broker, topic, each) for each in SUBSCRIPTIONS]
        for each, _ in consumers:
            got = [await _message(each) for _ in range(len(POISONS) + 1)]
            assert sorted(got) == sorted([*POISONS, LAST])

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))


def test_a_message_whose_text_is_none_can_be_peeked(broker: RunningBroker) -> None:
    topic = "persistent://public/default/peeked"

    async def play() -> None:
        reader, writer = await _produced(broker, topic)
        consumer = await _consumer(broker, topic, SUBSCRIPTIONS[1], permits=0)
        for number, entry in enumerate(POISONS):
            frame = BaseCommand(
                type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number, num_messages=1)
            ).SerializeToString()
            writer.write(frame_of(frame, len(entry)) + entry)
            await answer_of(reader, "SEND_RECEIPT")
        consumer[1].close()

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))
    base = f"{broker.web_url}/admin/v2/persistent/public/default/peeked/subscription/shared/position"
    answers = [httpx.get(f"{base}/{number}") for number in range(1, len(POISONS) + 1)]
    assert [each.status_code for each in answers] == [200] * len(POISONS)
    assert answers[0].headers["X-Pulsar-partition-key"] == r"\xff"


async def _produced(broker: RunningBroker, topic: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(broker.url)
    writer.write(command("PRODUCER", producer=CommandProducer(topic=topic, producer_id=1, request_id=1)))
    await answer_of(reader, "PRODUCER_SUCCESS")
    return reader, writer


async def _consumer(
    broker: RunningBroker, topic: str, wanted: CommandSubscribe, permits: int = 100
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(broker.url)
    place = CommandSubscribe(topic=topic, consumer_id=1, request_id=1, initialPosition=CommandSubscribe.Earliest)
    place.MergeFrom(wanted)
    writer.write(command("SUBSCRIBE", subscribe=place))
    await answer_of(reader, "SUCCESS")
    if permits:
        writer.write(command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=permits)))
    return reader, writer


async def _message(reader: asyncio.StreamReader) -> bytes:
    while True:
        said, entry = await answer_and_entry(reader)
        if said.type == BaseCommand.MESSAGE:
            return entry
