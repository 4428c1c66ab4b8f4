"""The commands that a proxy changes, and the bytes that it does not."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.model.errors import ProtocolError, TlsHandshakeError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, CommandConnect, CommandPing
from pulsar_on_spark.protocol.frames import FrameSplitter, frame_of
from pulsar_on_spark.proxy.handshake import MAX_ANSWER_BYTES, Greeting, GreetingReader, LookupAnswers

PING = frame_of(BaseCommand(type=BaseCommand.PING, ping=CommandPing()).SerializeToString())
CREDENTIALS = {
    "client_version": "test",
    "auth_method_name": "token",
    "auth_data": b"\x00secret",
    "protocol_version": 21,
    "original_principal": "somebody",
}


def connect(**fields: object) -> bytes:
    body = CommandConnect(**CREDENTIALS, **fields)
    return frame_of(BaseCommand(type=BaseCommand.CONNECT, connect=body).SerializeToString())


def commands_of(data: bytes) -> list[BaseCommand]:
    splitter = FrameSplitter(MAX_ANSWER_BYTES, MAX_ANSWER_BYTES)
    return [BaseCommand.FromString(command) for command, _ in splitter.split(data)]


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("", ""),
        ("broker-1:6650", "broker-1:6650"),
        ("pulsar://broker-1:6650/", "broker-1:6650"),
        ("[::1]:1", "[::1]:1"),
    ],
)
@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
def test_the_target_is_taken_out_and_all_else_is_passed_on(named: str, target: str, cut: int) -> None:
    sent = (connect(proxy_to_broker_url=named) if named else connect()) + PING
    reader, found = GreetingReader(), None
    for at in range(0, len(sent), cut):
        if found is None:
            found = reader.receive_data(sent[at : at + cut])
        else:
            found = Greeting(found.target, found.forwarded + sent[at : at + cut])
    assert found == Greeting(target, connect() + PING)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (PING, ProtocolError),
        (b"\xff" * 8, ProtocolError),
        (b"GET / HTTP/1.1\r\n\r\n", ProtocolError),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", TlsHandshakeError),
        (frame_of(b"", 200_000), ProtocolError),
    ],
)
def test_anything_but_a_connect_is_refused(sent: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        GreetingReader().receive_data(sent)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(sent: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        GreetingReader().receive_data(sent)


@pytest.mark.parametrize(
    ("plain", "with_tls", "used"),
    [("pulsar://b:1", "pulsar+ssl://b:2", "pulsar://b:1"), ("", "pulsar+ssl://b:2", "pulsar+ssl://b:2")],
)
def test_a_broker_is_reached_through_the_proxy(plain: str, with_tls: str, used: str) -> None:
    (answer,) = commands_of(LookupAnswers().receive_data(replies.lookup_response(7, plain, with_tls)))
    found = answer.lookupTopicResponse
    assert (found.request_id, found.brokerServiceUrl, found.brokerServiceUrlTls) == (7, used, used)
    assert found.proxy_through_service_url
    assert found.authoritative


@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_other_answers_are_the_same_bytes_however_they_are_cut(entries: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(frame_of(replies.pong()[8:], len(entry)) + entry + replies.success(1) for entry in entries)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    answers = LookupAnswers()
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert b"".join(map(answers.receive_data, pieces)) == sent


def test_a_refused_lookup_is_passed_on() -> None:
    refusal = replies.lookup_failed(3, 6, "try again")
    assert LookupAnswers().receive_data(refusal) == refusal
