"""A client's bytes as events: against protobuf's own parser, against frames of the Java client, against garbage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import ProtocolError
from pulsar_on_spark.protocol import server
from pulsar_on_spark.protocol.commands import BaseCommand, CommandFlow, CommandSend
from pulsar_on_spark.protocol.entry_frame import join_entry, split_entry
from pulsar_on_spark.protocol.frames import FRAME_PADDING_BYTES, MAX_MESSAGE_SIZE_BYTES, frame_of
from pulsar_on_spark.protocol.server import Command, Event, Sent, ServerConnection

GOLDEN: Mapping[str, str] = json.loads((Path(__file__).parent.parent / "golden" / "commands.json").read_text())[
    "client"
]
ENTRY = join_entry(b"metadata", b"payload")

numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.integers(0, 63).map(lambda bits: 2**bits)
sends = st.builds(
    CommandSend,
    producer_id=numbers,
    sequence_id=numbers,
    num_messages=st.none() | st.integers(-3, 2**31 - 1),
    txnid_least_bits=st.none() | numbers,
    txnid_most_bits=st.none() | numbers,
    highest_sequence_id=st.none() | numbers,
    is_chunk=st.none() | st.booleans(),
    marker=st.none() | st.booleans(),
)
varints = numbers.map(lambda number: _varint(number)) | st.binary(max_size=11).map(lambda b: bytes(x | 0x80 for x in b))
pieces = st.builds(lambda tag, body: _varint(tag) + body, st.integers(0, 90), varints | st.binary(max_size=4))
send_bodies = st.builds(
    lambda send, junk, at: send[: at % (len(send) + 1)] + junk + send[at % (len(send) + 1) :],
    sends.map(CommandSend.SerializeToString) | st.just(b""),
    st.just(b"") | st.lists(pieces, max_size=3).map(b"".join),
    st.integers(0, 50) | st.just(0),
)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _send_command(body: bytes) -> bytes:
    return b"\x08\x06\x32" + _varint(len(body)) + body


def _event(command: bytes, entry: bytes = ENTRY) -> Event:
    (event,) = ServerConnection().receive_data(frame_of(command, len(entry)) + entry)
    return event


def _as_parsed(command: bytes) -> Sent | None:
    """Decode a SEND by protobuf's parser; None if it is not a SEND of at least one message."""
    try:
        base = BaseCommand.FromString(command)
    except DecodeError:
        return None
    send = base.send
    if not base.IsInitialized() or base.type != BaseCommand.SEND or not base.HasField("send") or send.num_messages < 1:
        return None
    return Sent(
        send.producer_id,
        send.sequence_id,
        send.highest_sequence_id,
        send.num_messages,
        send.is_chunk,
        send.marker,
        send.txnid_most_bits,
        send.txnid_least_bits,
        [ENTRY],
        True,
    )


@settings(max_examples=300)
@given(send_bodies.map(_send_command) | send_bodies.map(lambda body: _send_command(body)[:-1]))
def test_sends_are_decoded_as_by_protobufs_parser(command: bytes) -> None:
    expected = _as_parsed(command)
    if expected is None:
        with pytest.raises(ProtocolError):
            _event(command)
    else:
        event = _event(command)
        assert event == expected
        assert [type(value) for value in event] == [type(value) for value in expected]


def _singles(events: Iterable[Event]) -> list[Event]:
    return [one for event in events for one in (event.singles() if isinstance(event, Sent) else (event,))]


going_on = st.builds(dict)
others = st.sampled_from(
    [
        {"producer_id": 2},
        {"sequence_id": 5},
        {"num_messages": 3},
        {"highest_sequence_id": 9},
        {"is_chunk": True},
        {"marker": True},
        {"txnid_most_bits": 1},
        {"txnid_least_bits": 1},
    ]
)
firsts = st.sampled_from([0, 126, 16_382, 2**21 - 2, 2**28 - 3, 2**63 - 3, 2**64 - 3])


@settings(max_examples=300)
@given(
    st.integers(0, 300),
    firsts,
    st.none() | st.sampled_from([1, 2, 1_000]),
    st.lists(st.tuples(going_on | others, st.sampled_from([ENTRY, ENTRY[:-1], b"", ENTRY + b"y"])), max_size=12),
    st.lists(st.integers(0, 1_000), max_size=3),
)
def test_a_run_is_the_sends_that_it_joins(
    producer_id: int,
    first: int,
    num_messages: int | None,
    steps: list[tuple[dict[str, int], bytes]],
    places: list[int],
) -> None:
    send = CommandSend(producer_id=producer_id, sequence_id=first, num_messages=num_messages)
    stream, expected = b"", list[Event]()
    for changes, entry in [({}, ENTRY), *steps]:
        one = CommandSend()
        one.CopyFrom(send)
        for name, value in changes.items():
            setattr(one, name, value)
        command = _send_command(one.SerializeToString())
        stream += frame_of(command, len(entry)) + entry
        parsed = _as_parsed(command)
        assert parsed is not None
        expected.append(parsed._replace(entries=[entry], is_intact=split_entry(entry) is not None))
        send.sequence_id = (one.sequence_id + one.num_messages) % 2**64
    connection, found = ServerConnection(), list[Event]()
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    for start, end in pairwise(bounds):
        found += connection.receive_data(stream[start:end])
    assert _singles(found) == expected


def test_sends_that_follow_each_other_are_one_run_until_something_differs() -> None:
    def send(sequence_id: int, entry: bytes = ENTRY, producer_id: int = 1) -> bytes:
        body = CommandSend(producer_id=producer_id, sequence_id=sequence_id).SerializeToString()
        return frame_of(_send_command(body), len(entry)) + entry

    broken = ENTRY[:-1]
    connection = ServerConnection()
    stream = b"".join(map(send, range(100, 200))) + send(200, broken) + send(201) + send(202) + send(203, producer_id=2)
    runs = connection.receive_data(stream)
    assert all(isinstance(run, Sent) for run in runs)
    assert [(run.producer_id, run.sequence_id, len(run.entries), run.is_intact) for run in runs] == [
        (1, 100, 100, True),
        (1, 200, 1, False),
        (1, 201, 2, True),
        (2, 203, 1, True),
    ]
    (later,) = connection.receive_data(send(204, producer_id=2) + send(205, producer_id=2))
    assert isinstance(later, Sent)
    assert (later.sequence_id, later.entries) == (204, [ENTRY, ENTRY])
    one, two = later.cut(1)
    assert ([one, two], one.sequence_id, two.sequence_id) == (list(later.singles()), 204, 205)


def test_one_send_of_a_producer_is_expected_whatever_its_batches_and_ids() -> None:
    connection, sequence_id = ServerConnection(), 2**40
    for number in range(100):
        batch = CommandSend(producer_id=number % 2, sequence_id=sequence_id, num_messages=1 + number * 7 % 10)
        connection.receive_data(frame_of(_send_command(batch.SerializeToString()), len(ENTRY)) + ENTRY)
        sequence_id += batch.num_messages if number % 3 else 1_000
    assert len(connection._expected) == 2
    assert set(connection._expected.values()) == set(connection._producers.values())


def test_the_next_sends_of_many_producers_are_expected_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def sends(sequence_id: int, producers: int) -> bytes:
        commands = (CommandSend(producer_id=each, sequence_id=sequence_id) for each in range(producers))
        frames = (_send_command(each.SerializeToString()) for each in commands)
        return b"".join(frame_of(each, len(ENTRY)) + ENTRY for each in frames)

    connection = ServerConnection()
    for producers in (server.MAX_EXPECTED, server.MAX_EXPECTED + 5):
        connection.receive_data(sends(7, producers))
    assert len(connection._expected) <= len(connection._producers) <= server.MAX_EXPECTED
    connection.receive_data(sends(7, 5))
    monkeypatch.setattr(connection, "_event", None)
    events = connection.receive_data(sends(8, 5))
    assert [(each.producer_id, each.sequence_id) for each in events if isinstance(each, Sent)] == [
        (number, 8) for number in range(5)
    ]


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("send_") or name == "send"])
def test_the_sends_of_clients_need_no_parser(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = bytes.fromhex(GOLDEN[name])
    (expected,) = ServerConnection().receive_data(frame)
    monkeypatch.setattr(server, "BaseCommand", None)
    if name == "send_replicated":
        # It carries the message's original position.
        with pytest.raises(AttributeError):
            ServerConnection().receive_data(frame)
    else:
        assert ServerConnection().receive_data(frame) == [expected]


@pytest.mark.parametrize("body", [b"\x10\x01", b"\x08\x01", b"", b"\x08\x01\x18\x01"])
def test_a_send_needs_producer_id_and_sequence_id(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="type 6 lacks a required field"):
        _event(_send_command(body))


@pytest.mark.parametrize("messages", [0, -1, -(2**31)])
def test_a_send_has_at_least_one_message(messages: int) -> None:
    send = CommandSend(producer_id=1, sequence_id=2, num_messages=messages)
    with pytest.raises(ProtocolError, match=f"claims to have {messages} messages"):
        _event(_send_command(send.SerializeToString()))


@pytest.mark.parametrize(
    ("entry", "is_intact"),
    [
        (ENTRY, True),
        (ENTRY[6:], True),
        (ENTRY[:-1] + b"X", False),
        (ENTRY[:-1], False),
        (ENTRY[6:10], False),
        (ENTRY[:9], False),
        (b"", False),
    ],
)
def test_an_entry_is_kept_as_received_and_checked(entry: bytes, is_intact: bool) -> None:
    event = _event(_send_command(b"\x08\x01\x10\x02"), entry)
    assert isinstance(event, Sent)
    assert (event.entry, event.is_intact) == (entry, is_intact)


def test_a_message_of_the_largest_size_passes() -> None:
    entry = join_entry(b"m" * 8, b"p" * (MAX_MESSAGE_SIZE_BYTES - 8))
    (event,) = ServerConnection().receive_data(frame_of(_send_command(b"\x08\x01\x10\x02"), len(entry)) + entry)
    assert isinstance(event, Sent)
    assert event.is_intact
    with pytest.raises(ProtocolError, match="larger than"):
        ServerConnection().receive_data(frame_of(b"", MAX_MESSAGE_SIZE_BYTES + FRAME_PADDING_BYTES))
    with pytest.raises(ProtocolError, match=f"larger than the {100 + FRAME_PADDING_BYTES} allowed"):
        ServerConnection(100).receive_data(frame_of(b"", 100 + FRAME_PADDING_BYTES))


@pytest.mark.parametrize("number", [1, 41, 75, 2**31 - 1])
def test_unknown_commands_are_events_without_body(number: int) -> None:
    command = b"\x08" + _varint(number) + _varint(min(number, 1_000) << 3 | 2) + b"\x02\x08\x01"
    assert _event(command) == Command(number, None)


def test_unknown_fields_are_ignored() -> None:
    flow = CommandFlow(consumer_id=1, messagePermits=2).SerializeToString() + b"\xc2\x3e\x01x"
    event = _event(b"\x08\x0b\x5a" + _varint(len(flow)) + flow + b"\xc2\x3e\x01x")
    assert isinstance(event, Command)
    assert event.type == BaseCommand.FLOW
    assert isinstance(event.body, CommandFlow)
    assert (event.body.consumer_id, event.body.messagePermits) == (1, 2)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (b"", "type 0 lacks a required field"),
        (b"\x08", "cannot be parsed"),
        (b"\x5a\x04\x08\x01\x10\x02", "type 0 lacks a required field"),
        (b"\x08\x0b\x5a\x02\x08\x01", "type 11 lacks a required field"),
        (b"\x08\x0b", "type 11 has no flow"),
        (b"\x08\x0b\x92\x01\x00", "type 11 has no flow"),
        (b"\x08\x06", "type 6 has no send"),
    ],
    ids=["empty", "cut", "no type", "a required field is missing", "no body", "another's body", "no body of a SEND"],
)
def test_incomplete_commands_are_refused(command: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        _event(command)


@pytest.mark.parametrize(
    ("number", "body", "name"),
    [
        (BaseCommand.LOOKUP, b"\x0a\x02t\xff\x10\x01", "topic"),
        (BaseCommand.PRODUCER, b"\x0a\x01t\x10\x01\x18\x02\x32\x06\x0a\x01k\x12\x01\x80", "value"),
    ],
)
def test_text_is_utf_8(number: int, body: bytes, name: str) -> None:
    with pytest.raises(ProtocolError, match=f"type {number} has a {name} that is not UTF-8"):
        _event(b"\x08" + _varint(number) + _varint(number << 3 | 2) + _varint(len(body)) + body)


@settings(max_examples=300)
@given(st.data())
def test_broken_frames_raise_nothing_but_protocol_errors(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.sampled_from(sorted(GOLDEN)), min_size=1, max_size=3))
    stream = bytearray(b"".join(bytes.fromhex(GOLDEN[name]) for name in frames))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4)):
        stream[at % len(stream)] = byte
    start = data.draw(st.just(0) | st.integers(0, len(stream)))

    def outcome(chunks: Iterable[bytes]) -> object:
        connection, events = ServerConnection(), []
        try:
            for chunk in chunks:
                events += connection.receive_data(chunk)
        except ProtocolError as error:
            return str(error)
        return _singles(events)

    broken = bytes(stream[start:])
    whole = outcome([broken])
    assert outcome(bytes([byte]) for byte in broken) == whole
    cut = data.draw(st.integers(0, len(broken)))
    assert outcome([broken[:cut], broken[cut:]]) == whole


def _ack(count: int, *, type_first: bool = True) -> bytes:
    ids = b"\x1a\x04\x08\x01\x10\x01" * count
    body = b"\x08\x01\x10\x00" + ids
    field = _varint(BaseCommand.ACK << 3 | 2) + _varint(len(body)) + body
    return b"\x08\x0a" + field if type_first else field + b"\x08\x0a"


def test_a_command_that_is_too_large_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(ProtocolError, match=r"a command of 5000000 bytes is larger than the \d+ allowed"):
        ServerConnection().receive_data((5_000_004).to_bytes(4, "big") + (5_000_000).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (_ack(server.MAX_IDS + 1), "names 50001 messages, more than the 50000 allowed"),
        (_ack(180_000), "a command of type 10 has 1080.* bytes, more than the 1048576 allowed"),
        (_ack(50_000, type_first=False), "a command of type -1 has 300.* bytes, more than the 131072 allowed"),
        (b"\x08\x12" + bytes(200_000), "a command of type 18 has 200002 bytes, more than the 131072 allowed"),
        (b"\x08", "cannot be parsed"),
    ],
)
def test_a_command_has_no_more_bytes_and_ids_than_its_type_may_have(command: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        _event(command, b"")


def test_as_many_ids_as_clients_have_unacknowledged_pass() -> None:
    event = _event(_ack(server.MAX_IDS), b"")
    assert isinstance(event, Command)
    assert event.type == BaseCommand.ACK


def test_before_the_handshake_a_client_may_send_two_commands_only() -> None:
    connect = bytes.fromhex(GOLDEN["connect"])
    ping = frame_of(BaseCommand(type=BaseCommand.PING, ping={}).SerializeToString())
    connection = ServerConnection(max_handshake_frame_bytes=1_000)
    (event,) = connection.receive_data(connect)
    assert isinstance(event, Command)
    assert event.type == BaseCommand.CONNECT
    for frame, complaint in ((ping, "it sent command 18 before it was connected"), (bytes((0, 0, 4, 0)) * 2, "larger")):
        with pytest.raises(ProtocolError, match=complaint):
            ServerConnection(max_handshake_frame_bytes=1_000).receive_data(frame)
    connection.handshake_done()
    assert len(connection.receive_data(ping + frame_of(_ack(1_000)))) == 2
    connection.receive_data(frame_of(_ack(1_000))[:100])
    assert connection.held_bytes == 100
