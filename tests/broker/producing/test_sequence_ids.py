"""With which sequence id a batch ends, whether its client says so or not."""

from __future__ import annotations

import pytest

from pulsar_on_spark.broker.producing.sequence_ids import with_last_sequence_id
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.testing.pulsar_entries import ClientMessage, batch_entry, single_entry


def sent(entry: bytes, count: int, highest: int = 0) -> Sent:
    return Sent(1, 20, highest, count, False, False, 0, 0, entry, True)


def batch(*sequence_ids: int | None) -> list[ClientMessage]:
    return [ClientMessage(b"x" * 100, sequence_id=each) for each in sequence_ids]


def last(given: Sent) -> int:
    return with_last_sequence_id(given).highest_sequence_id


@pytest.mark.parametrize("codec", Codec)
def test_a_client_that_does_not_say_it_has_it_in_the_batch(codec: Codec) -> None:
    entry = batch_entry(batch(20, 30, 45), codec, MessageMetadata(sequence_id=20))
    assert last(sent(entry, 3)) == 45


def test_what_a_client_says_counts() -> None:
    entry = batch_entry(batch(20, 30, 45), metadata=MessageMetadata(sequence_id=20))
    assert last(sent(entry, 3, highest=50)) == 50
    assert last(sent(single_entry(ClientMessage(b"x", sequence_id=20)), 1)) == 0


def test_a_batch_that_cannot_be_looked_into_counts_up() -> None:
    secret = MessageMetadata(sequence_id=20, encryption_keys=[{"key": "k", "value": b"v"}])
    assert last(sent(batch_entry(batch(20, 30, 45), metadata=secret), 3)) == 22
    assert last(sent(batch_entry(batch(None, None), metadata=MessageMetadata(sequence_id=20)), 2)) == 21
