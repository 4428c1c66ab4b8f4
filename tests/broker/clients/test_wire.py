"""A broker and clients that no library wrote: what they do wrong costs them their own connection and nothing else."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx
import pulsar
import pytest

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandFlow,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandSeek,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.messages import MessageMetadata
from tests.broker.clients.conftest import WAIT_MS
from tests.kit.pulsar_entries import ClientMessage, batch_entry, single_entry
from tests.kit.running_broker import RunningBroker

ENTRY = single_entry(ClientMessage(value=b"by hand"))


class Wire:
    """A connection, command by command."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        self.send_bytes(frame_of(command.SerializeToString(), len(entry)) + entry)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[BaseCommand, bytes]:
        """The next command and what follows it; the broker's own PINGs are answered on the way, as clients do."""
        while True:
            frame = self._read(int.from_bytes(self._read(4), "big"))
            entry_at = 4 + int.from_bytes(frame[:4], "big")
            command = BaseCommand.FromString(frame[4:entry_at])
            if command.type != BaseCommand.PING:
                return command, frame[entry_at:]
            self.send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))

    def ask(self, command: BaseCommand, entry: bytes = b"") -> BaseCommand:
        self.send(command, entry)
        return self.receive()[0]

    def is_alive(self) -> bool:
        return self.ask(BaseCommand(type=BaseCommand.PING, ping=CommandPing())).type == BaseCommand.PONG

    def is_closed(self) -> bool:
        """Once all that came before is read."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the broker hung up")
            data += piece
        return data


@contextmanager
def unconnected(broker: RunningBroker) -> Iterator[Wire]:
    host, port = broker.url.removeprefix("pulsar://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=WAIT_MS / 1000) as connection:
        yield Wire(connection)


@contextmanager
def connected(broker: RunningBroker) -> Iterator[Wire]:
    with unconnected(broker) as wire:
        assert wire.ask(CONNECT).type == BaseCommand.CONNECTED
        yield wire


CONNECT = BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="by hand", protocol_version=21))


def producing(wire: Wire, topic: str, name: str | None = None) -> None:
    producer = CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name=name)
    assert wire.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)).type == BaseCommand.PRODUCER_SUCCESS


def sending(sequence_id: int, count: int = 1) -> BaseCommand:
    send = CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=count)
    return BaseCommand(type=BaseCommand.SEND, send=send)


def subscribing(wire: Wire, topic: str) -> None:
    subscribe = CommandSubscribe(
        topic=topic,
        subscription="sub",
        subType=CommandSubscribe.Exclusive,
        consumer_id=2,
        request_id=2,
        initialPosition=CommandSubscribe.Earliest,
    )
    assert wire.ask(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)).type == BaseCommand.SUCCESS
    wire.send(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=2, messagePermits=100)))


def seeking(to: MessageIdData) -> BaseCommand:
    return BaseCommand(type=BaseCommand.SEEK, seek=CommandSeek(consumer_id=2, request_id=4, message_id=to))


def acknowledging(wire: Wire, type_: CommandAck.AckType, *ids: MessageIdData) -> None:
    ack = CommandAck(consumer_id=2, ack_type=type_, message_id=ids, request_id=3)
    answer = wire.ask(BaseCommand(type=BaseCommand.ACK, ack=ack))
    assert answer.type == BaseCommand.ACK_RESPONSE
    assert not answer.ackResponse.HasField("error")


@pytest.mark.parametrize("checksum", [True, False], ids=["with checksum", "without"])
def test_an_entry_reaches_the_consumer_byte_by_byte(broker: RunningBroker, topic: str, checksum: bool) -> None:
    entry = ENTRY if checksum else ENTRY[6:]
    with connected(broker) as wire:
        producing(wire, topic)
        receipt = wire.ask(sending(5), entry)
        assert (receipt.type, receipt.send_receipt.sequence_id) == (BaseCommand.SEND_RECEIPT, 5)
        subscribing(wire, topic)
        message, got = wire.receive()
        assert message.type == BaseCommand.MESSAGE
        assert message.message.message_id == receipt.send_receipt.message_id
        assert got == entry


def test_entries_before_the_first_consumer_are_cached_for_it(broker: RunningBroker, topic: str) -> None:
    def misses() -> float:
        metrics = httpx.get(f"{broker.web_url}/metrics", timeout=WAIT_MS / 1000).raise_for_status().text
        (found,) = re.findall(r"^pulsarpy_cache_misses_total(?:{.*})? (\S+)$", metrics, re.MULTILINE)
        return float(found)

    with connected(broker) as wire:
        producer = CommandProducer(topic=topic, producer_id=1, request_id=1, initial_subscription_name="sub")
        assert wire.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)).type == BaseCommand.PRODUCER_SUCCESS
        assert wire.ask(sending(1), ENTRY).type == BaseCommand.SEND_RECEIPT
        before = misses()
        subscribing(wire, topic)
        assert wire.receive()[0].type == BaseCommand.MESSAGE
        assert misses() == before


def test_a_client_disconnected_by_a_seek_may_seek_again_before_it_reconnects(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as wire, connected(broker) as other:
        producing(wire, topic)
        ids = [wire.ask(sending(number), ENTRY).send_receipt.message_id for number in range(3)]
        subscribing(wire, topic)
        assert [wire.receive()[0].type for _ in ids] == [BaseCommand.MESSAGE] * 3
        assert wire.ask(seeking(ids[0])).type == BaseCommand.CLOSE_CONSUMER
        assert wire.receive()[0].type == BaseCommand.SUCCESS
        assert wire.ask(seeking(ids[2])).type == BaseCommand.SUCCESS
        subscribing(other, topic)
        assert other.receive()[0].message.message_id == ids[2]
        refused = wire.ask(seeking(ids[0]))
        assert (refused.type, refused.error.error) == (BaseCommand.ERROR, ServerError.ConsumerNotFound)
        assert other.is_alive()


def test_a_broken_entry_is_refused_and_the_next_one_stored(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as wire:
        producing(wire, topic)
        for broken in (ENTRY[:-1] + b"X", ENTRY[:12], b""):
            refused = wire.ask(sending(1), broken)
            assert refused.type == BaseCommand.SEND_ERROR
            assert refused.send_error.error == ServerError.ChecksumError
        assert wire.ask(sending(1), ENTRY).type == BaseCommand.SEND_RECEIPT


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
        pytest.param(b"\xff" * 64, id="a frame of 4 GiB"),
        pytest.param(frame_of(b"\x08"), id="half a command"),
        pytest.param(frame_of(b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01"), id="a topic that is no text"),
        pytest.param(frame_of(sending(1).SerializeToString(), len(ENTRY)) + ENTRY, id="an unknown producer"),
        pytest.param(frame_of(CONNECT.SerializeToString()), id="a second CONNECT"),
    ],
)
def test_nonsense_closes_only_its_own_connection(
    broker: RunningBroker, client: pulsar.Client, topic: str, data: bytes
) -> None:
    producer = client.create_producer(topic)
    with connected(broker) as wire, connected(broker) as other:
        wire.send_bytes(data)
        assert wire.is_closed()
        assert other.is_alive()
    producer.send(b"still here")


def test_a_consumer_closed_while_it_is_being_connected_stays_closed(broker: RunningBroker, topic: str) -> None:
    """A client gives up waiting and closes; what came to life afterwards would keep others out for good."""
    subscribe = CommandSubscribe(
        topic=topic, subscription="sub", subType=CommandSubscribe.Exclusive, consumer_id=2, request_id=3
    )
    producer = CommandProducer(topic=topic, producer_id=1, request_id=4, producer_name="the one")
    commands = (
        BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe),
        BaseCommand(type=BaseCommand.PRODUCER, producer=producer),
        BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=CommandCloseConsumer(consumer_id=2, request_id=5)),
        BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=1, request_id=6)),
    )
    with connected(broker) as wire, connected(broker) as other:
        # In one piece: the topic is not made yet when the last is read.
        wire.send_bytes(b"".join(frame_of(each.SerializeToString()) for each in commands))
        assert {wire.receive()[0].success.request_id for _ in range(2)} == {5, 6}
        subscribing(other, topic)
        asked = other.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer))
        assert asked.type == BaseCommand.PRODUCER_SUCCESS
        assert wire.is_alive(), "it got no other command"


def test_commands_before_connect_close_the_connection(broker: RunningBroker) -> None:
    with unconnected(broker) as wire:
        wire.send(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
        assert wire.is_closed()


def test_commands_and_fields_of_newer_clients_are_passed_over(broker: RunningBroker) -> None:
    with connected(broker) as wire:
        wire.send_bytes(frame_of(b"\x08\x4b\xda\x04\x02\x08\x01"))
        wire.send_bytes(frame_of(b"\x08\x12\x92\x01\x00\xc2\x3e\x01x"))
        assert wire.receive()[0].type == BaseCommand.PONG
        assert wire.is_alive()


def test_a_command_may_arrive_byte_by_byte(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as wire:
        producing(wire, topic)
        frame = frame_of(sending(9).SerializeToString(), len(ENTRY)) + ENTRY
        for at in range(len(frame)):
            wire.send_bytes(frame[at : at + 1])
        assert wire.receive()[0].send_receipt.sequence_id == 9


def test_acknowledging_the_entry_before_the_first_changes_nothing(broker: RunningBroker, topic: str) -> None:
    """Clients name entry -1 when a message of a ledger's first batch is acknowledged cumulatively."""
    batch = batch_entry([ClientMessage(value=b"a"), ClientMessage(value=b"b")])
    with connected(broker) as wire:
        producing(wire, topic)
        wire.ask(sending(1, 2), batch)
        subscribing(wire, topic)
        ledger = wire.receive()[0].message.message_id.ledgerId
        acknowledging(wire, CommandAck.Cumulative, MessageIdData(ledgerId=ledger, entryId=2**64 - 1))
    with connected(broker) as wire:
        subscribing(wire, topic)
        assert wire.receive()[1] == batch, "it is not acknowledged"


def test_chunks_are_redelivered_from_the_first_until_all_are_acknowledged(broker: RunningBroker, topic: str) -> None:
    """Chunks that official clients reassemble or drop: pulsar-client 3.13 drops them."""
    chunks = [
        single_entry(
            ClientMessage(value=b"part %d" % number),
            metadata=MessageMetadata(uuid="by hand-1", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=18),
        )
        for number in range(3)
    ]
    with connected(broker) as wire:
        producing(wire, topic)
        for entry in [*chunks, ENTRY]:
            assert wire.ask(sending(1), entry).type == BaseCommand.SEND_RECEIPT
    with connected(broker) as wire:
        subscribing(wire, topic)
        assert [wire.receive()[1] for _ in range(2)] == chunks[:2]
    with connected(broker) as wire:
        subscribing(wire, topic)
        came = [wire.receive() for _ in range(3)]
        assert [entry for _, entry in came] == chunks
        ids = [
            MessageIdData(ledgerId=said.message.message_id.ledgerId, entryId=said.message.message_id.entryId)
            for said, _ in came
        ]
        assert wire.receive()[1] == ENTRY
        acknowledging(wire, CommandAck.Individual, *ids)
    with connected(broker) as wire:
        subscribing(wire, topic)
        assert wire.receive()[1] == ENTRY, "the chunks are acknowledged, all of them"


def test_receipts_and_errors_are_in_the_order_of_entries(
    broker: RunningBroker, admin: httpx.Client, topic: str
) -> None:
    """Clients that are answered for a later entry than their first open one hang up, or drop what they wait for."""
    path = f"/persistent/public/default/{topic}"
    admin.put(path).raise_for_status()
    admin.post(f"{path}/deduplicationEnabled", json=True).raise_for_status()

    def answers(wire: Wire, *sequence_ids: int) -> list[int]:
        frames = [frame_of(sending(number).SerializeToString(), len(ENTRY)) + ENTRY for number in sequence_ids]
        broken = frame_of(sending(77).SerializeToString(), len(ENTRY)) + ENTRY[:-1] + b"X"
        wire.send_bytes(b"".join([*frames, broken]))
        got = [wire.receive()[0] for _ in [*sequence_ids, 77]]
        return [(each.send_receipt if each.HasField("send_receipt") else each.send_error).sequence_id for each in got]

    with connected(broker) as wire:
        producing(wire, topic, "me")
        assert answers(wire, 1, 2) == [1, 2, 77]
        assert answers(wire, 3, 1, 4, 2, 5) == [3, 1, 4, 2, 5, 77]
        admin.put(f"{path}/unload").raise_for_status()
    with connected(broker) as wire:
        producing(wire, topic, "me")  # its ledger is opened by the first entry: all wait for that
        assert answers(wire, 4, 5, 6, 2, 7) == [4, 5, 6, 2, 7, 77]


@pytest.mark.parametrize("policies", [{}, {"maxMessageSize": 1_000}, {"deduplicationEnabled": True}], ids=str)
@pytest.mark.parametrize("piece_bytes", [100_000, 1_000, 70])
def test_refusals_in_the_middle_of_a_run_concern_one_entry_each(
    broker: RunningBroker, admin: httpx.Client, topic: str, policies: dict[str, object], piece_bytes: int
) -> None:
    path = f"/persistent/public/default/{topic}"
    admin.put(path).raise_for_status()
    for name, value in policies.items():
        admin.post(f"{path}/{name}", json=value).raise_for_status()
    large = single_entry(ClientMessage(value=bytes(2_000)))
    in_transaction = sending(40)
    in_transaction.send.txnid_most_bits = 1
    special: dict[int, tuple[BaseCommand, bytes]] = {
        20: (sending(20), ENTRY[:-1] + b"X"),
        40: (in_transaction, ENTRY),
        41: (sending(41, 100_001), ENTRY),
        60: (sending(60), large),
        61: (sending(61), ENTRY[:12]),
        80: (sending(1), ENTRY),
    }
    refused = {20: ServerError.ChecksumError, 40: ServerError.NotAllowedError, 41: ServerError.NotAllowedError}
    refused[61] = ServerError.ChecksumError
    if "maxMessageSize" in policies:
        refused[60] = ServerError.NotAllowedError
    sent = [special.get(number, (sending(number), ENTRY)) for number in range(2, 101)]
    stream = b"".join(frame_of(each.SerializeToString(), len(entry)) + entry for each, entry in sent)
    with connected(broker) as wire:
        producing(wire, topic, "me")
        assert wire.ask(sending(1), ENTRY).type == BaseCommand.SEND_RECEIPT
        for at in range(0, len(stream), piece_bytes):
            wire.send_bytes(stream[at : at + piece_bytes])
        answers = [wire.receive()[0] for _ in sent]
    entries = count(1)
    for number, (asked, _), said in zip(range(2, 101), sent, answers, strict=True):
        if number in refused:
            assert (said.send_error.sequence_id, said.send_error.error) == (number, refused[number])
        else:
            assert said.send_receipt.sequence_id == asked.send.sequence_id
            is_stored = number != 80 or "deduplicationEnabled" not in policies
            assert said.send_receipt.message_id.entryId == (next(entries) if is_stored else 2**64 - 1)
    stats = admin.get(f"{path}/stats").raise_for_status().json()
    assert stats["msgInCounter"] == next(entries)


def test_what_follows_an_unknown_producer_in_a_run_is_dropped_with_its_connection(
    broker: RunningBroker, topic: str
) -> None:
    stray = sending(3)
    stray.send.producer_id = 9
    sent = [sending(1), sending(2), stray, sending(3), sending(4)]
    with connected(broker) as wire:
        producing(wire, topic, "me")
        assert wire.ask(sending(0), ENTRY).type == BaseCommand.SEND_RECEIPT
        wire.send_bytes(b"".join(frame_of(each.SerializeToString(), len(ENTRY)) + ENTRY for each in sent))
        assert wire.is_closed()
    with connected(broker) as wire:
        producing(wire, topic, "me")
        assert wire.ask(sending(5), ENTRY).send_receipt.message_id.entryId == 3


def test_a_client_that_hangs_up_under_back_pressure_makes_room(
    broker: RunningBroker, admin: httpx.Client, topic: str
) -> None:
    """A connection that is not read cannot notice its end, and would keep its producer name and subscription."""
    path = f"/persistent/public/default/{topic}"
    admin.put(path).raise_for_status()
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    admin.post(f"{path}/publishRate", json=rate).raise_for_status()
    producer = CommandProducer(
        topic=topic, producer_id=1, request_id=1, producer_name="the one", user_provided_producer_name=True
    )
    with connected(broker) as wire:
        subscribing(wire, topic)
        assert wire.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)).type == BaseCommand.PRODUCER_SUCCESS
        # PONG keeps a client alive that is not read.
        answers = (BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE, BaseCommand.PONG)
        assert wire.ask(sending(1, 1_000), ENTRY).type in answers
    with connected(broker) as other:
        assert other.ask(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)).type == BaseCommand.PRODUCER_SUCCESS
        subscribing(other, topic)


def test_closing_an_unknown_consumer_or_producer_succeeds(broker: RunningBroker) -> None:
    close = CommandCloseProducer(producer_id=77, request_id=4)
    with connected(broker) as wire:
        answer = wire.ask(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=close))
        assert (answer.type, answer.success.request_id) == (BaseCommand.SUCCESS, 4)
