"""A broker that ends sends its clients away with everything settled, and they go on with the next one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pulsar
import pytest

from tests.broker.clients.conftest import new_client
from tests.broker.clients.test_durable import stored
from tests.kit.free_ports import free_port
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles


@pytest.mark.parametrize("kind", ["plain", "TLS"])
def test_clients_continue_with_the_next_broker_without_loss_or_duplicates(tmp_path: Path, kind: str) -> None:
    root, settings = tmp_path / "root", {"broker_service_port": free_port()}
    trust = None
    if kind == "TLS":
        files = TlsFiles(tmp_path / "tls")
        trust = files.trust
        settings = files.settings(broker_service_port_tls=free_port())
    broker = RunningBroker(root, settings)
    client = new_client(broker.tls_url or broker.url, trust)
    consumer = client.subscribe("orders", "s")
    producer = client.create_producer("orders", max_pending_messages=50_000)
    results: list[pulsar.Result] = []
    sent = 0
    ending = threading.Thread(target=broker.stop)
    while sent < 1_000 or ending.is_alive():
        producer.send_async(b"%d" % sent, lambda result, _: results.append(result))
        sent += 1
        if sent == 1_000:
            ending.start()
        if not sent % 100:
            time.sleep(0.01)
        if sent == 5_000:
            break
    ending.join()
    broker = RunningBroker(root, settings)
    producer.flush()
    assert set(results) == {pulsar.Result.Ok}
    values = [b"%d" % number for number in range(sent)]
    received = []
    while len(received) < sent:
        message = consumer.receive(60_000)
        received.append(message.data())
        consumer.acknowledge(message)
    client.close()
    broker.stop()
    assert sorted(set(received)) == sorted(values)
    assert stored(root, "orders") == values
