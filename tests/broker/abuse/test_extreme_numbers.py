"""The largest and smallest numbers of clients' commands: none is a bug in the broker or leaves a client behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from pulsar_on_spark.broker.runtime.server_errors import BUG_REASON
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.messages import MessageMetadata
from tests.broker.clients.raw import answer, answer_of, command, connect
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_broker import RunningBroker

LIMIT_S = 120
U64, I64, U32, I32 = 2**64 - 1, 2**63 - 1, 2**32 - 1, 2**31 - 1
MODES = {"Exclusive": 1, "WaitForExclusive": 2, "ExclusiveWithFencing": 3}
IDS = [
    *(MessageIdData(ledgerId=number, entryId=number) for number in (U64, 2**63, I64, 0)),
    MessageIdData(ledgerId=0, entryId=0, batch_index=-(2**31), partition=-(2**31), batch_size=I32),
    MessageIdData(ledgerId=0, entryId=0, batch_index=I32, batch_size=-(2**31), ack_set=[-(2**63)] * 10),
    MessageIdData(ledgerId=0, entryId=0, first_chunk_message_id=MessageIdData(ledgerId=U64 - 1, entryId=U64)),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    root = tmp_path_factory.mktemp("numbers") / "root"
    with RunningBroker(root, {"broker_deduplication_enabled": "true"}) as running:
        yield running


def producer(topic: str, **said: Any) -> bytes:
    return command("PRODUCER", producer=CommandProducer(**{"topic": topic, "producer_id": 1, "request_id": 1} | said))


def send(said: dict[str, Any], **metadata: Any) -> bytes:
    entry = single_entry(ClientMessage(b"x"), metadata=MessageMetadata(**metadata))
    body = CommandSend(**{"producer_id": 1, "sequence_id": 1, "num_messages": 1} | said)
    return frame_of(BaseCommand(type=BaseCommand.SEND, send=body).SerializeToString(), len(entry)) + entry


def subscribe(topic: str, **said: Any) -> bytes:
    wanted = {"topic": topic, "subscription": "s", "subType": 1, "consumer_id": 1, "request_id": 1}
    return command("SUBSCRIBE", subscribe=CommandSubscribe(**wanted | said))


def flow(permits: int) -> bytes:
    return command("FLOW", flow=CommandFlow(consumer_id=1, messagePermits=permits))


def of_producers(topic: str) -> dict[str, list[bytes]]:
    """The commands of a connection, by what is extreme in them."""
    plain, closing = producer(topic), command("CLOSE_PRODUCER", close_producer={"producer_id": 1, "request_id": 2})
    named = producer(topic, producer_name="named")
    found = {
        "ids": [producer(topic, producer_id=U64, request_id=U64)],
        "epoch": [producer(topic, epoch=U64)],
        "times": [plain, send({}, sequence_id=U64, highest_sequence_id=U64, publish_time=U64, event_time=U64)],
        "batch": [plain, send({}, num_messages_in_batch=-(2**31), uncompressed_size=U32)],
        "chunk": [plain, send({"is_chunk": True}, uuid="u", chunk_id=-(2**31), num_chunks_from_msg=I32)],
        "delay": [plain, send({}, deliver_at_time=-(2**63)), send({"sequence_id": 2}, deliver_at_time=I64)],
    }
    for mode, number in MODES.items():
        found[f"topic-epoch-{mode}"] = [producer(topic, topic_epoch=U64, producer_access_mode=number)]
    for first, last in ((U64, 0), (0, U64), (U64, U64), (2**63, 0), (I64, 0)):
        sent = send({"sequence_id": first, "highest_sequence_id": last})
        found[f"sequence-ids-{first}-{last}"] = [named, sent, closing, named]
    for count in (-(2**31), -1, 0, I32):
        found[f"messages-{count}"] = [plain, send({"num_messages": count})]
    return found


def of_consumers(topic: str) -> dict[str, list[bytes]]:
    """The commands of a connection, by what is extreme in them."""
    plain, some = subscribe(topic), flow(10)
    last_id = command("GET_LAST_MESSAGE_ID", getLastMessageId={"consumer_id": 1, "request_id": 2})
    seek = CommandSeek(consumer_id=1, request_id=2, message_publish_time=U64)
    found = {
        "ids": [subscribe(topic, consumer_id=U64, request_id=U64)],
        "priority": [subscribe(topic, priority_level=-(2**31)), some],
        "epoch": [subscribe(topic, consumer_epoch=U64), some],
        "rollback": [subscribe(topic, durable=False, start_message_rollback_duration_sec=U32), some],
        "permits": [plain, *[flow(U32)] * 3, flow(0)],
        "seek-time": [plain, command("SEEK", seek=seek)],
    }
    for number, each in enumerate(IDS):
        at = CommandSeek(consumer_id=1, request_id=2, message_id=each)
        acks = [CommandAck(consumer_id=1, ack_type=type_, message_id=[each], request_id=3) for type_ in (0, 1)]
        again = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[each], consumer_epoch=U64)
        found |= {
            f"start-{number}": [subscribe(topic, durable=False, start_message_id=each), some, last_id],
            f"seek-{number}": [plain, some, command("SEEK", seek=at)],
            f"ack-{number}": [plain, some, *(command("ACK", ack=ack) for ack in acks)],
            f"again-{number}": [
                plain,
                some,
                command("REDELIVER_UNACKNOWLEDGED_MESSAGES", redeliverUnacknowledgedMessages=again),
            ],
        }
    return found


ANSWERS = {
    BaseCommand.PRODUCER: (BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR),
    BaseCommand.CLOSE_PRODUCER: (BaseCommand.SUCCESS,),
    BaseCommand.SEND: (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR),
    BaseCommand.SUBSCRIBE: (BaseCommand.SUCCESS, BaseCommand.ERROR),
    BaseCommand.SEEK: (BaseCommand.SUCCESS, BaseCommand.ERROR),
    BaseCommand.ACK: (BaseCommand.ACK_RESPONSE,),
    BaseCommand.GET_LAST_MESSAGE_ID: (BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, BaseCommand.ERROR),
}
SCENES = {"producer": of_producers, "consumer": of_consumers}


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize(("side", "scene"), [(side, scene) for side, made in SCENES.items() for scene in made("t")])
def test_no_number_is_a_bug_or_leaves_a_client_behind(
    broker: RunningBroker, side: str, scene: str, domain: str
) -> None:
    topic = f"{domain}://public/default/{side}-{scene}"

    async def play() -> None:
        reader, writer = await connect(broker.url)
        writer.write(producer(topic, producer_id=7, request_id=7))
        await answer_of(reader, "PRODUCER_SUCCESS")
        writer.write(send({"producer_id": 7}))
        await answer_of(reader, "SEND_RECEIPT")
        writer.write(command("CLOSE_PRODUCER", close_producer={"producer_id": 7, "request_id": 8}))
        await answer_of(reader, "SUCCESS")
        with suppress(asyncio.IncompleteReadError):  # a broker may close the connection
            for frame in SCENES[side](topic)[scene]:
                writer.write(frame)
                assert BUG_REASON not in str([each async for each in _answers(reader, frame)])
        writer.close()
        assert await _is_soon_exclusive(broker, topic), "a producer is left behind"

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))
    assert "bug in the broker" not in broker.said
    assert "Traceback" not in broker.said
    # A non-persistent topic without clients is not there at all.
    for each in _stats(broker, topic).get("subscriptions", {}).values():
        assert each["consumers"] == []


@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_an_epoch_that_no_producer_got_is_fenced_and_not_stored(broker: RunningBroker, mode: int) -> None:
    topic = f"persistent://public/default/epochs-{mode}"

    async def ask(**said: Any) -> BaseCommand:
        reader, writer = await connect(broker.url)
        writer.write(producer(topic, **said))
        first = await answer(reader)
        writer.write(command("CLOSE_PRODUCER", close_producer={"producer_id": 1, "request_id": 2}))
        await answer_of(reader, "SUCCESS")
        writer.close()
        return first

    async def play() -> None:
        assert (await ask(producer_access_mode=1)).producer_success.topic_epoch == 0
        refused = await ask(producer_access_mode=mode, topic_epoch=U64)
        assert refused.error.error == ServerError.ProducerFenced
        assert (await ask(producer_access_mode=1)).producer_success.topic_epoch == 1

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))
    assert _stats(broker, topic)["topicEpoch"] == 1


def _stats(broker: RunningBroker, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{broker.web_url}/admin/v2/{topic.replace('://', '/')}/stats").json()
    return found


async def _is_soon_exclusive(broker: RunningBroker, topic: str) -> bool:
    for _ in range(100):
        reader, writer = await connect(broker.url)
        writer.write(producer(topic, producer_access_mode=1))
        answered = await answer(reader)
        writer.close()
        if answered.type == BaseCommand.PRODUCER_SUCCESS:
            return True
    return False


async def _answers(reader: asyncio.StreamReader, frame: bytes) -> AsyncIterator[BaseCommand]:
    """Yield what the broker says until it has answered a command that has an answer."""
    asked = BaseCommand.FromString(frame[8 : 8 + int.from_bytes(frame[4:8], "big")]).type
    while asked in ANSWERS:
        said = await answer(reader)
        yield said
        if said.type in ANSWERS[asked]:
            return
