"""Decoder of the bytes that a client sends to a broker, without IO. `replies` encodes the broker's answers.

Only SEND is decoded without protobuf objects, and mostly just compared (`_NextSend`). For ACK, a decoder in Python was
faster with one id (4.1 us instead of protobuf's 5.0) and slower with ten (20 us instead of 17): protobuf decodes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pulsar_on_spark.model.errors import ProtocolError
from pulsar_on_spark.protocol.commands import BaseCommand
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.frames import FRAME_PADDING_BYTES, MAX_MESSAGE_SIZE_BYTES, FrameSplitter
from pulsar_on_spark.protocol.varint import varint, varints


class Sent(NamedTuple):
    """A run of SENDs: SENDs of one producer that follow each other, or a single one.

    The numbers are those of the first SEND. Each next one differs only in its sequence id, which is higher by
    `num_messages`, and in its entry. A run of several has no highest sequence id, chunks, markers or transactions, and
    all its entries are intact: other SENDs are runs of one.

    Attributes:
        producer_id: The client's id for the producer.
        sequence_id: Sequence id of the first message of the first entry.
        highest_sequence_id: Sequence id of a batch's last message; 0 if the client sent none.
        num_messages: Number of messages in each entry; at least 1.
        is_chunk: True if the entry is a chunk of a larger message.
        marker: True if the entry is a marker, which brokers read and consumers do not get.
        txnid_most: High half of the transaction id; both halves are 0 without a transaction.
        txnid_least: Low half of the transaction id.
        entries: The entries as received, in the form of `entry_frame`; at least one.
        is_intact: False if the entry is malformed or fails its checksum (`split_entry`).
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    is_chunk: bool
    marker: bool
    txnid_most: int
    txnid_least: int
    entries: list[bytes]
    is_intact: bool

    @property
    def entry(self) -> bytes:
        """The entry of a run of one."""
        (entry,) = self.entries
        return entry

    def cut(self, at: int) -> tuple[Sent, Sent]:
        """Return the run's first `at` SENDs, and the others; both must be at least one."""
        after = self.sequence_id + at * self.num_messages
        return self._replace(entries=self.entries[:at]), self._replace(sequence_id=after, entries=self.entries[at:])

    def singles(self) -> Iterable[Sent]:
        """Return each SEND as a run of one."""
        if len(self.entries) == 1:
            return (self,)
        ids = count(self.sequence_id, self.num_messages)
        return (
            self._replace(sequence_id=each, entries=[entry]) for each, entry in zip(ids, self.entries, strict=False)
        )


class Command(NamedTuple):
    """A command other than SEND.

    Attributes:
        type: The command's `BaseCommand.Type`.
        body: The command's protobuf message; None for an unknown type.
    """

    type: int
    body: Message | None


Event: TypeAlias = Sent | Command

_BODIES = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.message_type is not None}
_SEND = bytes((1 << 3, BaseCommand.SEND, BaseCommand.SEND << 3 | 2))
"""The first bytes of a SEND command: the type, and the tag of the body. The body's size follows."""
_SEND_HEADS = [_SEND + bytes([size]) for size in range(0x80)]
"""The bytes before the body of a SEND command, by the body's size."""
_NUMBERS = (
    "producer_id",
    "sequence_id",
    "num_messages",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
    "is_chunk",
    "marker",
)
_NUMBER_TAGS = frozenset(range(1 << 3, 9 << 3, 1 << 3))
"""Tags of the fields 1 to 8 of a SEND."""
_MAX_SHIFT = 7 * 8
"""Number of bits before a varint's ninth byte. `_send_numbers` leaves longer varints to protobuf."""
_MAX_MESSAGES = 2**31 - 1
_MAX_SEQUENCE_ID = 2**63 - 1
"""The largest sequence id of a SEND that is expected after another. Clients count in signed numbers."""

MAX_HANDSHAKE_FRAME_BYTES = 128 << 10
"""Default limit of the bytes of a frame, before CONNECTED is sent. Such frames have the client's credentials."""
MAX_COMMAND_BYTES = 128 << 10
"""Limit of the bytes of a command without its entry, for all types that are not in `MAX_COMMAND_BYTES_OF`."""
MAX_COMMAND_BYTES_OF: Mapping[int, int] = {
    BaseCommand.ACK: 1 << 20,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: 1 << 20,
    BaseCommand.PRODUCER: (1 << 20) + (64 << 10),
    BaseCommand.SUBSCRIBE: (1 << 20) + (64 << 10),
    BaseCommand.GET_OR_CREATE_SCHEMA: (1 << 20) + (64 << 10),
}
"""Limits of the bytes of commands, by type, for commands with many message ids or with a schema of up to 1 MiB."""
MAX_IDS = 50_000
"""Maximum number of message ids in one command. Client libraries group up to 1,000 acknowledgements. An application may
acknowledge a longer list in one call, but has at most 50,000 unacknowledged messages by default."""
MAX_EXPECTED = 1_000
"""Limit of the SENDs that are expected on a connection, one for each of its producers that sent before.

Each takes 0.8 KB of memory."""
_HANDSHAKE = (BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE)
_TYPE_TAG = 1 << 3


class ServerConnection:
    """Decoder of one client's bytes. The caller must not use it again after a `ProtocolError`.

    Args:
        max_message_size_bytes: Limit of the size of an entry's metadata and payload.
        max_handshake_frame_bytes: Limit of the size of a frame until `handshake_done` is called. Until then, only
            CONNECT and AUTH_RESPONSE are parsed. None for a client that is already connected.
    """

    def __init__(
        self, max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES, *, max_handshake_frame_bytes: int | None = None
    ) -> None:
        self._max_frame_bytes = max_message_size_bytes + FRAME_PADDING_BYTES
        first = self._max_frame_bytes if max_handshake_frame_bytes is None else max_handshake_frame_bytes
        self._splitter = FrameSplitter(first, max(MAX_COMMAND_BYTES_OF.values()))
        self._event = _event if max_handshake_frame_bytes is None else _handshake_event
        self._expected: dict[bytes, _NextSend] = {}
        """The SEND that is expected of each producer, by its command."""
        self._producers: dict[int, _NextSend] = {}
        """The same objects by producer id, and those of producers whose next sequence id would be too large."""

    @property
    def held_bytes(self) -> int:
        """Size of the received part of an incomplete frame, in bytes."""
        return self._splitter.held_bytes

    def handshake_done(self) -> None:
        """Allow all commands, with the frame limit of a connected client."""
        self._splitter.max_frame_bytes = self._max_frame_bytes
        self._event = _event

    def receive_data(self, data: bytes) -> list[Event]:
        """Decode all frames that end in these bytes of the stream, in order.

        Args:
            data: The next bytes of the stream; they may end anywhere in a frame.

        Raises:
            ProtocolError: the bytes are not Pulsar's protocol, or a frame or command exceeds its limit.
        """
        events: list[Event] = []
        producer: _NextSend | None = None  # of the last event, if the producer's next SEND may join it
        run: list[bytes] = []
        for command, entry in self._splitter.split(data):
            following = self._expected.pop(command, None)
            if following is not None and split_entry(entry) is not None:
                if following is producer:
                    run.append(entry)
                else:
                    producer, run = following, [entry]
                    events.append(following.run(run))
                self._expect(following)
            else:
                event = self._event(command, entry)
                events.append(event)
                producer = None
                if isinstance(event, Sent) and (following := self._follow(command, event)) is not None:
                    self._expect(following)
                    if event.is_intact:
                        producer, run = following, event.entries
        return events

    def _follow(self, command: bytes, sent: Sent) -> _NextSend | None:
        """Return `_NextSend.after`, and no longer expect what was expected of this producer.

        Otherwise each batch of another size than the one before would leave what was expected in its place.
        """
        if (outdated := self._producers.pop(sent.producer_id, None)) is not None:
            self._expected.pop(outdated.command, None)
        if (following := _NextSend.after(command, sent)) is not None:
            if len(self._producers) >= MAX_EXPECTED:  # most of these producers have closed
                self._producers.clear()
                self._expected.clear()
            self._producers[sent.producer_id] = following
        return following

    def _expect(self, following: _NextSend) -> None:
        """Expect the SEND after this one."""
        if following.advance():
            self._expected[following.command] = following


class _NextSend:
    """The SEND that is expected of a producer next: it differs from the last one only in its sequence id.

    A client with several producers sends their entries in any order, so one object is kept for each producer. Finding
    the object by the command's bytes is faster than decoding the command.

    Args:
        producer_id: The client's id for the producer.
        sequence_id: Its sequence id.
        num_messages: The number of its messages.
        count_field: The encoded number of messages; empty if the client sends none.

    Attributes:
        command: The bytes of the SEND's command.
    """

    __slots__ = (
        "_count_field",
        "_num_messages",
        "_producer_field",
        "_producer_id",
        "_sequence_id",
        "_sequence_ids",
        "command",
    )

    def __init__(self, producer_id: int, sequence_id: int, num_messages: int, count_field: bytes) -> None:
        self._producer_id = producer_id
        self._sequence_id = sequence_id
        self._num_messages = num_messages
        self._producer_field = b"\x08" + varint(producer_id) + b"\x10"
        self._count_field = count_field
        self._sequence_ids = varints(sequence_id, num_messages)
        self.command = self._encoded()

    @classmethod
    def after(cls, command: bytes, sent: Sent) -> _NextSend | None:
        """Return this SEND, for the caller to `advance`; None if it has other fields than most, or another encoding."""
        if sent.highest_sequence_id or sent.is_chunk or sent.marker:
            return None
        count_field = b"\x18" + varint(sent.num_messages)
        if not command.endswith(count_field):
            count_field = b""
        made = cls(sent.producer_id, sent.sequence_id, sent.num_messages, count_field)
        return made if command == made.command else None

    def run(self, entries: list[bytes]) -> Sent:
        """Return a run that begins with this SEND."""
        return Sent(self._producer_id, self._sequence_id, 0, self._num_messages, False, False, 0, 0, entries, True)

    def advance(self) -> bool:
        """Become the SEND after this one; return False, with no effect, if its sequence id would be too large."""
        following = self._sequence_id + self._num_messages
        if following > _MAX_SEQUENCE_ID:
            return False
        self._sequence_id, self.command = following, self._encoded()
        return True

    def _encoded(self) -> bytes:
        body = self._producer_field + next(self._sequence_ids) + self._count_field
        return _SEND_HEADS[len(body)] + body


def _handshake_event(command: bytes, entry: bytes) -> Event:
    type_ = _first_type(command)
    if type_ not in _HANDSHAKE:
        raise ProtocolError(f"it sent command {type_} before it was connected")
    return _event(command, entry)


def _event(command: bytes, entry: bytes) -> Event:
    if (numbers := _send_numbers(command)) is not None:
        return _sent(numbers, entry)
    is_large = len(command) > MAX_COMMAND_BYTES
    if is_large:
        _check_size(command)
    try:
        base = BaseCommand.FromString(command)
    except DecodeError as error:
        raise ProtocolError(f"a command cannot be parsed: {error}") from None
    if not base.IsInitialized():
        raise ProtocolError(f"a command of type {base.type} lacks a required field")
    field = _BODIES.get(base.type)
    if field is None:
        return Command(base.type, None)
    if not base.HasField(field):
        raise ProtocolError(f"a command of type {base.type} has no {field}")
    if base.type == BaseCommand.SEND:
        return _sent([getattr(base.send, name) for name in _NUMBERS], entry)
    body = getattr(base, field)
    if is_large:  # a smaller command cannot hold too many ids
        _check_ids(base)
    if _has_text(body.DESCRIPTOR):
        _check_text(base.type, body)
    return Command(base.type, body)


def _first_type(command: bytes) -> int:
    """Return the command's type, which all clients encode first; -1 if another field comes first."""
    return command[1] if len(command) > 1 and command[0] == _TYPE_TAG else -1


def _check_size(command: bytes) -> None:
    type_ = _first_type(command)
    limit_bytes = MAX_COMMAND_BYTES_OF.get(type_, MAX_COMMAND_BYTES)
    if len(command) > limit_bytes:
        raise ProtocolError(f"a command of type {type_} has {len(command)} bytes, more than the {limit_bytes} allowed")


def _check_ids(base: BaseCommand) -> None:
    ids = 0
    if base.type == BaseCommand.ACK:
        ids = len(base.ack.message_id)
    elif base.type == BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
        ids = len(base.redeliverUnacknowledgedMessages.message_ids)
    if ids > MAX_IDS:
        raise ProtocolError(f"a command of type {base.type} names {ids} messages, more than the {MAX_IDS} allowed")


@cache
def _has_text(message: Descriptor) -> bool:
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type not in (None, message) and _has_text(field.message_type))
        for field in message.fields
    )


def _check_text(number: int, message: Message) -> None:
    """Raise ProtocolError for a text field that is not UTF-8, which protobuf returns as bytes."""
    for field, value in message.ListFields():
        values: Iterable[Any] = (value,) if isinstance(value, str | bytes | Message) else value
        if field.type == FieldDescriptor.TYPE_STRING:
            if any(isinstance(text, bytes) for text in values):
                raise ProtocolError(f"a command of type {number} has a {field.name} that is not UTF-8")
        elif field.message_type is not None and _has_text(field.message_type):
            for inner in values:
                _check_text(number, inner)


def _sent(numbers: Sequence[int], entry: bytes) -> Sent:
    producer_id, sequence_id, num_messages, txnid_least, txnid_most, highest, is_chunk, marker = numbers
    if num_messages < 1:
        raise ProtocolError(f"a SEND claims to have {num_messages} messages")
    return Sent(
        producer_id,
        sequence_id,
        highest,
        num_messages,
        is_chunk != 0,
        marker != 0,
        txnid_most,
        txnid_least,
        [entry],
        split_entry(entry) is not None,
    )


def _send_numbers(command: bytes) -> list[int] | None:
    """Return a SEND's numbers in the order of `_NUMBERS`, or None if protobuf must decode the command.

    For a SEND in the usual encoding, this takes half the time of protobuf.
    """
    body_bytes = len(command) - 4
    if command[:3] != _SEND or body_bytes < 0 or command[3] != body_bytes:
        return None
    numbers = [-1, -1, 1, 0, 0, 0, 0, 0]
    body = iter(command[4:])
    for tag in body:
        if tag not in _NUMBER_TAGS:
            return None
        number = shift = 0
        for byte in body:
            if byte < 0x80:
                break
            number |= (byte & 0x7F) << shift
            shift += 7
        else:
            return None
        if shift > _MAX_SHIFT:
            return None
        numbers[(tag >> 3) - 1] = number | byte << shift
    return numbers if numbers[0] >= 0 and numbers[1] >= 0 and numbers[2] <= _MAX_MESSAGES else None
