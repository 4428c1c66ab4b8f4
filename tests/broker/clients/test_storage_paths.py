"""Storage paths fail under a running broker, and come back."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from pulsar_on_spark.testing.running_broker import RunningBroker
from tests.broker.clients.conftest import new_client
from tests.broker.clients.test_durable import stored


def test_below_the_ack_quorum_producers_wait_until_a_path_is_well_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    paths = [root / "storage" / str(number) for number in (1, 2)]
    with RunningBroker(root) as broker:
        client = new_client(broker.url)
        producer = client.create_producer("t", send_timeout_millis=0)
        producer.send(b"three copies")
        for number, path in enumerate(paths):
            path.rename(path.with_name(f"away-{number}"))
        hasty = client.create_producer("t", send_timeout_millis=2_000)
        with pytest.raises(pulsar.Timeout):
            hasty.send(b"one copy is not enough")
        for number, path in enumerate(paths):
            path.with_name(f"away-{number}").rename(path)
        producer.send(b"three copies again")
        hasty.close()
        client.close()
    assert [value for value in stored(root, "t") if value.startswith(b"three")] == [
        b"three copies",
        b"three copies again",
    ]
