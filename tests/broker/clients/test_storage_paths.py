"""Storage paths fail under a running broker, and come back."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.running_broker import RunningBroker


def test_below_the_ack_quorum_producers_wait_until_a_path_is_well_again_and_consumers_do_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    paths = [root / "storage" / str(number) for number in (1, 2)]
    with RunningBroker(root, {"keep_alive_interval_seconds": 1}) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("t", send_timeout_millis=0)
        producer.send(b"three copies")
        # On the same connection; it asks for every message.
        consumer = client.subscribe("other", "s", receiver_queue_size=1)
        other = client.create_producer("other")
        values = [b"%d" % number for number in range(20)]
        for value in values:
            other.send(value)
        for number, path in enumerate(paths):
            path.rename(path.with_name(f"away-{number}"))
        hasty = client.create_producer("t", send_timeout_millis=2_000)
        with pytest.raises(pulsar.Timeout):
            hasty.send(b"one copy is not enough")
        outcomes: list[pulsar.Result] = []
        producer.send_async(b"three copies later", lambda result, _: outcomes.append(result))
        for value in values:
            message = consumer.receive(WAIT_MS)
            assert message.data() == value
            consumer.acknowledge(message)
        for number, path in enumerate(paths):
            path.with_name(f"away-{number}").rename(path)
        producer.send(b"three copies again")
        assert outcomes == [pulsar.Result.Ok]
        hasty.close()
        client.close()
    assert [value for value in stored(root, "t") if value.startswith(b"three")] == [
        b"three copies",
        b"three copies later",
        b"three copies again",
    ]


def test_a_subscription_whose_deletion_fails_continues(tmp_path: Path) -> None:
    metadata = tmp_path / "root" / "metadata"
    with RunningBroker(tmp_path / "root") as broker:
        client = new_client(broker.url)
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        producer.send(b"one")
        metadata.rename(metadata.with_name("away"))
        with pytest.raises(pulsar.PulsarException):
            consumer.unsubscribe()
        metadata.with_name("away").rename(metadata)
        producer.send(b"two")
        assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"one", b"two"]
        consumer.unsubscribe()
        client.close()
