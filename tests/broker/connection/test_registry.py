"""Limits on connections, and the choice of connections to close if incomplete frames take too much memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.connection import registry
from pulsar_on_spark.broker.connection.registry import IncompleteFrames, Registry
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.protocol.commands import ServerError


@dataclass(eq=False)
class Client:
    is_held: bool = False
    ended: list[str] = field(default_factory=list)

    @property
    def intake(self) -> SimpleNamespace:
        return SimpleNamespace(is_held=self.is_held)

    def abort(self, why: str) -> None:
        self.ended.append(why)


def refusal(clients: Registry[Client], host: str, settings: BrokerSettings) -> ServerError | None:
    client = Client()
    try:
        clients.add(client, host, settings)
    except ServerRefusalError as error:
        clients.remove(client)
        return error.code
    return None


def test_connections_are_limited_in_total_and_for_each_address() -> None:
    clients = Registry[Client](1)
    limits = BrokerSettings(broker_max_connections=3, broker_max_connections_per_ip=2)
    refusals = [refusal(clients, host, limits) for host in ("a", "a", "a", "b", "b")]
    assert refusals == [None, None, ServerError.NotAllowedError, None, ServerError.NotAllowedError]
    assert len(clients) == 3
    clients.remove(next(iter(clients)))
    assert refusal(clients, "a", limits) is None


def test_connections_from_one_ipv6_prefix_count_together() -> None:
    clients = Registry[Client](1)
    limits = BrokerSettings(broker_max_connections_per_ip=1)
    hosts = ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:10.0.0.7", "10.0.0.7")
    refused = ServerError.NotAllowedError
    assert [refusal(clients, host, limits) for host in hosts] == [None, refused, None, None, refused]


def test_slow_handshakes_are_limited_in_total_and_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SLOW_HANDSHAKES", 4)
    monkeypatch.setattr(registry, "MAX_SLOW_HANDSHAKES_PER_ADDRESS", 2)
    clients, limits = Registry[Client](1), BrokerSettings(broker_max_connections=0)

    def slow(host: str) -> ServerError | None:
        client = Client()
        clients.add(client, host, limits)
        try:
            clients.add_slow_handshake(client)
        except ServerRefusalError as error:
            clients.remove(client)
            return error.code
        return None

    refusals = [slow(host) for host in "aaabbccc"]
    busy = ServerError.ServiceNotReady
    assert refusals == [None, None, busy, None, None, busy, busy, busy]
    for client in clients:
        clients.handshake_done(client)
        clients.handshake_done(client)
    assert [slow(host) for host in "aaa"] == [None, None, busy]
    for client in clients:
        clients.remove(client)
        clients.remove(client)
    assert len(clients) == 0
    assert [slow(host) for host in "aabbc"] == [None, None, None, None, busy]


def test_the_quietest_connection_is_closed_unless_the_broker_has_paused_it() -> None:
    clients = Registry[Client](100)
    quiet, waiting, slow, busy = Client(), Client(is_held=True), Client(), Client()
    for client in (quiet, waiting, slow, busy):
        clients.note_incomplete_frame(client, 30 if client is not busy else 5)
    clients.note_incomplete_frame(busy, 10)
    assert not any(client.ended for client in (quiet, waiting, slow, busy))
    clients.note_incomplete_frame(busy, 41)
    assert [len(client.ended) for client in (quiet, waiting, slow, busy)] == [1, 0, 0, 0]
    clients.note_incomplete_frame(busy, 71)
    assert [len(client.ended) for client in (quiet, waiting, slow, busy)] == [1, 0, 1, 0]
    clients.note_incomplete_frame(busy, 0)
    clients.note_incomplete_frame(slow, 100)
    assert len(slow.ended) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60))
def test_incomplete_frames_of_the_remaining_connections_are_within_the_limit(noted: list[tuple[int, int]]) -> None:
    frames, held = IncompleteFrames[int](100), {}
    for connection, size_bytes in noted:
        frames.note(connection, size_bytes)
        held.pop(connection, None)
        held[connection] = size_bytes
        for gone in frames.surplus(lambda _: False):
            assert gone == next(connection for connection, left in held.items() if left)
            del held[gone]
        assert sum(held.values()) <= 100
