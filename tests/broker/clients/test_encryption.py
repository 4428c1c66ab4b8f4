"""Messages that clients encrypt from end to end, and topics that require it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandProducer,
    CommandSend,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of
from tests.kit.pulsar_entries import ClientMessage, single_entry
from tests.kit.running_broker import RunningBroker
from tests.kit.waiting import wait_until

from .conftest import WAIT_MS, new_client
from .raw import answer, command, connect

KEY = "of-a-test"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(65537, 2048)
    public, private = folder / "public.pem", folder / "private.pem"
    pem = serialization.Encoding.PEM
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    plain = (serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(pem, *plain))
    return pulsar.CryptoKeyReader(str(public), str(private))


@pytest.fixture
def namespace(admin: httpx.Client, topic: str) -> str:
    """A namespace of its own."""
    admin.put("/tenants/secret", json={})
    admin.put(f"/namespaces/secret/{topic}").raise_for_status()
    return f"secret/{topic}"


def require(admin: httpx.Client, namespace: str, value: bool = True) -> None:
    admin.post(f"/namespaces/{namespace}/encryptionRequired", json=value).raise_for_status()
    assert admin.get(f"/namespaces/{namespace}/encryptionRequired").json() is value


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_encrypted_messages_pass_where_they_are_required(
    client: pulsar.Client, admin: httpx.Client, namespace: str, keys: pulsar.CryptoKeyReader, domain: str
) -> None:
    require(admin, namespace)
    topic = f"{domain}://{namespace}/t"
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    stranger = client.subscribe(topic, "stranger", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    producer = client.create_producer(topic, encryption_key=KEY, crypto_key_reader=keys)
    for number in range(5):
        producer.send(b"secret-%d" % number)
    assert [consumer.receive(WAIT_MS).data() for _ in range(5)] == [b"secret-%d" % number for number in range(5)]
    assert b"secret" not in stranger.receive(WAIT_MS).data()


def test_a_batch_is_encrypted_as_a_whole(
    client: pulsar.Client, admin: httpx.Client, namespace: str, keys: pulsar.CryptoKeyReader
) -> None:
    require(admin, namespace)
    topic = f"{namespace}/t"
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(
        topic,
        encryption_key=KEY,
        crypto_key_reader=keys,
        batching_enabled=True,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    for number in range(20):
        producer.send_async(b"%d" % number, callback=lambda *_: None)
    producer.flush()
    assert [int(consumer.receive(WAIT_MS).data()) for _ in range(20)] == list(range(20))


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_producers_and_messages_without_encryption_are_refused(
    broker: RunningBroker, admin: httpx.Client, namespace: str, domain: str
) -> None:
    require(admin, namespace)
    topic = f"{domain}://{namespace}/t"

    async def scene() -> list[BaseCommand]:
        reader, writer = await connect(broker.url)
        heard = []
        for number, encrypted in enumerate((False, True)):
            asked = CommandProducer(topic=topic, producer_id=number, request_id=number, encrypted=encrypted)
            writer.write(command("PRODUCER", producer=asked))
            heard.append(await answer(reader))
        sent = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=7, num_messages=1))
        entry = single_entry(ClientMessage(b"plain"))
        writer.write(frame_of(sent.SerializeToString(), len(entry)) + entry)
        heard.append(await answer(reader))
        writer.close()
        return heard

    refused, admitted, unsent = asyncio.run(asyncio.wait_for(scene(), WAIT_MS / 1000))
    assert refused.error.error == ServerError.MetadataError
    assert "Encryption is required" in refused.error.message
    assert admitted.type == BaseCommand.PRODUCER_SUCCESS
    assert (unsent.send_error.sequence_id, unsent.send_error.error) == (7, ServerError.NotAllowedError)
    assert "must be encrypted" in unsent.send_error.message


def test_switching_it_on_sends_plain_producers_away(
    client: pulsar.Client, admin: httpx.Client, namespace: str, keys: pulsar.CryptoKeyReader
) -> None:
    topic = f"{namespace}/t"
    plain = client.create_producer(topic, "plain", send_timeout_millis=2000)
    encrypting = client.create_producer(topic, "encrypting", encryption_key=KEY, crypto_key_reader=keys)
    plain.send(b"before")
    require(admin, namespace)

    def names() -> list[str]:
        stats = admin.get(f"/persistent/{topic}/stats").json()
        return sorted(each["producerName"] for each in stats["publishers"])

    wait_until(lambda: names() == ["encrypting"])
    encrypting.send(b"after")
    with pytest.raises(pulsar.PulsarException):
        plain.send(b"after")
    require(admin, namespace, False)
    other = client.create_producer(topic, "other")
    other.send(b"again")


def test_the_setting_holds_for_all_namespaces(tmp_path: Path, keys: pulsar.CryptoKeyReader) -> None:
    with RunningBroker(tmp_path / "root", {"encryption_require_on_producer": "true"}) as running:
        with httpx.Client(base_url=f"{running.web_url}/admin/v2", timeout=WAIT_MS / 1000) as admin:
            admin.post("/namespaces/public/default/encryptionRequired", json=False).raise_for_status()
        client = new_client(running.url, timeout_s=3)
        client.create_producer("t", encryption_key=KEY, crypto_key_reader=keys).send(b"secret")
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("t").send(b"plain")
        client.close()
        assert httpx.get(f"{running.web_url}/admin/v2/brokers/health", timeout=WAIT_MS / 1000).status_code == 200
