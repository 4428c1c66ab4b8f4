"""Messages of an official producer reach an official consumer unchanged."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import random
import shutil
import subprocess
import time
from pathlib import Path

import pulsar
import pulsar.asyncio
import pytest
from pulsar import CompressionType

from tests.broker.clients.conftest import WAIT_MS
from tests.kit.running_broker import RunningBroker

TEXT = b"the quick brown fox jumps over the lazy dog " * 200
CODECS = [
    CompressionType.NONE,
    CompressionType.LZ4,
    CompressionType.ZLib,
    CompressionType.ZSTD,
    CompressionType.SNAPPY,
]


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_messages_of_every_compression_are_received(
    client: pulsar.Client, topic: str, codec: CompressionType, batching: bool
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic, compression_type=codec, batching_enabled=batching, batching_max_publish_delay_ms=50
    )
    sent = [TEXT, random.Random(1).randbytes(10_000), *(b"%d" % number for number in range(20))]
    for value in sent:
        producer.send_async(value, lambda _result, _id: None)
    producer.flush()
    got = [consumer.receive(WAIT_MS) for _ in sent]
    assert [message.data() for message in got] == sent
    entries = {message.message_id().entry_id() for message in got}
    assert len(entries) == (1 if batching else len(sent))


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_message_keeps_all_its_fields(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="me", batching_enabled=batching)
    before_ms = int(time.time() * 1000)
    sent_id = producer.send(
        b"value",
        properties={"region": "eu", "empty": "", "ünï": "çödé"},
        partition_key="kle\u00e9",
        ordering_key="order",
        sequence_id=77,
        event_timestamp=1_753_500_001_234,
    )
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"value"
    assert message.properties() == {"region": "eu", "empty": "", "ünï": "çödé"}
    assert message.partition_key() == "kleé"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1_753_500_001_234
    assert before_ms - 1_000 <= message.publish_timestamp() <= time.time() * 1000 + 1_000
    assert message.topic_name() == f"persistent://public/default/{topic}"
    assert message.producer_name() == "me"
    assert message.redelivery_count() == 0
    got_id = message.message_id()
    assert (got_id.ledger_id(), got_id.entry_id()) == (sent_id.ledger_id(), sent_id.entry_id())
    assert got_id.batch_index() == (0 if batching else -1)
    consumer.acknowledge(message)


def test_a_message_may_be_empty_and_a_key_alone_is_a_tombstone(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"", partition_key="gone")
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.partition_key()) == (b"", "gone")


def test_chunks_are_joined_to_one_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=True)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = random.Random(2).randbytes(12 * 1024 * 1024)
    producer.send(b"before")
    chunked_id = producer.send(large)
    producer.send(b"after")
    got = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [hashlib.sha256(message.data()).digest() for message in got] == [
        hashlib.sha256(value).digest() for value in (b"before", large, b"after")
    ]
    assert got[1].message_id() == chunked_id
    consumer.seek(got[1].message_id())
    assert consumer.receive(WAIT_MS).data() == large


def test_messages_keep_the_order_of_sending_over_many_batches(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", receiver_queue_size=100)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=37, block_if_queue_full=True, max_pending_messages=500
    )
    count = 5_000
    for number in range(count):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
    producer.flush()
    for number in range(count):
        message = consumer.receive(WAIT_MS)
        assert message.data() == b"%d" % number
    consumer.acknowledge_cumulative(message)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_encrypted_messages_pass_untouched(client: pulsar.Client, topic: str, tmp_path: Path, batching: bool) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    reader = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "sub", crypto_key_reader=reader)
    producer = client.create_producer(topic, encryption_key="key", crypto_key_reader=reader, batching_enabled=batching)
    for number in range(5):
        producer.send_async(b"secret %d" % number, lambda _result, _id: None)
    producer.flush()
    assert [consumer.receive(WAIT_MS).data() for _ in range(5)] == [b"secret %d" % number for number in range(5)]


def test_a_listener_gets_messages_and_batch_receive_several(client: pulsar.Client, topic: str) -> None:
    heard: queue.Queue[bytes] = queue.Queue()

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        heard.put(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "listening", message_listener=listen)
    batches = client.subscribe(topic, "batches", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, -1, 60_000))
    producer = client.create_producer(topic)
    values = [b"%d" % number for number in range(10)]
    for value in values:
        producer.send(value)
    assert [heard.get(timeout=WAIT_MS / 1000) for _ in values] == values
    assert [message.data() for message in batches.batch_receive()] == values


def test_asyncio_sends_and_receives(broker: RunningBroker, topic: str) -> None:
    async def run() -> list[bytes]:
        client = pulsar.asyncio.Client(broker.url)
        consumer = await client.subscribe(topic, "sub")
        producer = await client.create_producer(topic)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(20)))
        got = [(await consumer.receive()).data() for _ in range(20)]
        await client.close()
        return got

    assert sorted(asyncio.run(asyncio.wait_for(run(), WAIT_MS / 1000))) == sorted(b"%d" % n for n in range(20))
