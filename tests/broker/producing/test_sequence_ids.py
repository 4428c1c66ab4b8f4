"""The sequence id of a batch's last message, sent by the client or not."""

from __future__ import annotations

import time

import pytest

from pulsar_on_spark.broker.producing.sequence_ids import with_last_sequence_id
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.server import Sent
from tests.kit.pulsar_entries import ClientMessage, batch_bomb, batch_entry, single_entry


def sent(entry: bytes, count: int, highest: int = 0) -> Sent:
    return Sent(1, 20, highest, count, False, False, 0, 0, [entry], True)


def batch(*sequence_ids: int | None) -> list[ClientMessage]:
    return [ClientMessage(b"x" * 100, sequence_id=sequence_id) for sequence_id in sequence_ids]


def last(given: Sent) -> int:
    return with_last_sequence_id(given).highest_sequence_id


@pytest.mark.parametrize("codec", Codec)
def test_the_highest_sequence_id_is_read_from_the_batch_if_the_client_omits_it(codec: Codec) -> None:
    entry = batch_entry(batch(20, 30, 45), codec, MessageMetadata(sequence_id=20))
    assert last(sent(entry, 3)) == 45


def test_the_clients_highest_sequence_id_counts() -> None:
    entry = batch_entry(batch(20, 30, 45), metadata=MessageMetadata(sequence_id=20))
    assert last(sent(entry, 3, highest=50)) == 50
    assert last(sent(single_entry(ClientMessage(b"x", sequence_id=20)), 1)) == 0


def test_ids_of_a_batch_that_cannot_be_unpacked_are_counted_up() -> None:
    secret = MessageMetadata(sequence_id=20, encryption_keys=[{"key": "k", "value": b"v"}])
    assert last(sent(batch_entry(batch(20, 30, 45), metadata=secret), 3)) == 22
    assert last(sent(batch_entry(batch(None, None), metadata=MessageMetadata(sequence_id=20)), 2)) == 21


def test_a_large_batch_is_not_unpacked() -> None:
    """Unpacking would delay the broker's other clients."""
    large, liar = batch_bomb(1_000_000), batch_bomb(1_000, claimed=10, size=2**32 - 1)
    began_s = time.monotonic()
    for _ in range(1_000):
        assert last(sent(large, 100_000)) == 7 + 100_000 - 1
        assert last(sent(liar, 10)) == 20
    assert time.monotonic() - began_s < 10, "unpacking the first batch takes half a second each time"
    many = batch_entry(batch(*range(20, 20_020)), Codec.ZSTD, MessageMetadata(sequence_id=20))
    assert last(sent(many, 20_000)) == 20_019
