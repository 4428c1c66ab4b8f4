"""The disk that holds the whole root fills up under a broker: nothing is lost, and all continues once there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.broker.clients.test_durable import stored
from tests.kit.running_broker import RunningBroker
from tests.kit.small_disks import SmallDisk

pytestmark = pytest.mark.long

DISK_MIB = 96
ENOUGH_MIB = 1024
"""Segments take their place beside the journals that they are made from."""
MESSAGE_BYTES = 100_000
GIVE_UP_MS = 3_000
PATIENCE_S = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", DISK_MIB) as made:
        yield made


def fill(producer: pulsar.Producer, sent: list[bytes]) -> None:
    """Send more than there is room for; `sent` are those with a receipt."""
    for number in range(DISK_MIB * 10):
        value = b"%d " % number + os.urandom(MESSAGE_BYTES)
        producer.send(value)
        sent.append(value)


@pytest.mark.root
def test_a_full_disk(disk: SmallDisk) -> None:
    root = disk.at / "root"
    sent: list[bytes] = []
    with RunningBroker(root) as broker:
        client = new_client(broker.url)
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer("t", send_timeout_millis=GIVE_UP_MS)
        with pytest.raises(pulsar.Timeout):
            fill(producer, sent)
        assert sent, "there was room for some"
        # What has a receipt is delivered though nothing can be written, not even where the cursor stands.
        for value in sent:
            message = consumer.receive(WAIT_MS)
            assert message.data() == value
            consumer.acknowledge(message)
        disk.grow(ENOUGH_MIB)
        after = b"there is room again"
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                producer.send(after)
                break
            except pulsar.Timeout:
                assert time.monotonic() < until_s, f"nothing went on: {broker.said}"
        received = [consumer.receive(WAIT_MS).data()]
        while received[-1] != after:
            received.append(consumer.receive(WAIT_MS).data())
        client.close()
        assert broker.stop() == 0
    kept = stored(root, "t")
    # What its sender gave up may be there all the same.
    assert [value for value in kept if value in sent] == sent
    assert kept[-1] == after
