"""Clients that misbehave as fast as they can: the others don't notice, and the broker's memory stays bounded."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pulsar
import pytest

from tests.broker.clients.conftest import WAIT_MS, new_client
from tests.kit.forked_pulsarpy import ForkedPulsarpy
from tests.kit.rude_clients import HOW
from tests.kit.running_broker import RunningBroker
from tests.kit.tls_files import TlsFiles

MIB = 1 << 20
GROWTH_BYTES = 300 * MIB
"""A hundred connections may have 1 MiB each of a frame that never ends; beside it the publish buffer and the cache."""
SETTINGS = {"managed_ledger_cache_size_mb": 32, "max_message_publish_buffer_size_mb": 32}
SOME = ("never_read", "stall_in_a_frame", "garbage")
OVER_TLS = (
    *SOME,
    "never_acknowledge",
    "many_connections",
    "flood_of_unknown_commands",
    "stall_before_connecting",
)
ROUNDS = 12
LONG_ROUNDS = 30
NOTICED = 20
"""Times as long as without them: rude clients, the broker and the polite client share two CPUs."""
FLOOR_MS = 50.0
"""Below that a pause of the machine is longer."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = TlsFiles(tmp_path_factory.mktemp("tls")).settings(**SETTINGS)
    with RunningBroker(tmp_path_factory.mktemp("rude") / "root", settings) as running:
        yield running


@contextmanager
def rude_client(how: str, url: str, topic: str) -> Iterator[ForkedPulsarpy]:
    reading, writing = os.pipe()
    process = ForkedPulsarpy([how, url, topic], os.environ, writing, 2, module="tests.kit.rude_clients")
    os.close(writing)
    try:
        with open(reading) as output:
            assert output.readline() == "at work\n"
            yield process
    finally:
        process.kill()
        process.wait(WAIT_MS / 1000)


@pytest.mark.parametrize("how", SOME)
def test_others_do_not_notice(broker: RunningBroker, how: str) -> None:
    others_do_not_notice(broker, broker.url, how)


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
def test_others_do_not_notice_for_longer(broker: RunningBroker, how: str) -> None:
    others_do_not_notice(broker, broker.url, how, LONG_ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize("how", OVER_TLS)
def test_others_do_not_notice_over_tls_for_longer(broker: RunningBroker, how: str) -> None:
    others_do_not_notice(broker, broker.tls_url, how, LONG_ROUNDS)


def others_do_not_notice(broker: RunningBroker, url: str, how: str, rounds: int = ROUNDS) -> None:
    process = psutil.Process(broker.pid)
    client = new_client(broker.url)
    consumer = client.subscribe("polite", f"{how} {url}", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer("polite")
    without_ms = [there_and_back(producer, consumer) for _ in range(rounds // 2)]
    before, peak, taken_ms = process.memory_info().rss, 0, []
    with rude_client(how, url, f"rude-{how}") as rude:
        for _ in range(rounds):
            taken_ms.append(there_and_back(producer, consumer))
            peak = max(peak, process.memory_info().rss)
        assert not rude.has_ended(), "it ended before anybody could notice it"
    # Before and after it, as other tests may have begun meanwhile.
    quiet_halves_ms = without_ms, [there_and_back(producer, consumer) for _ in range(rounds - rounds // 2)]
    client.close()
    for name, of in (("median", statistics.median), ("longest", max)):
        quiet_ms, rude_ms = max(map(of, quiet_halves_ms)), of(taken_ms)
        print(f"{how}: {name} {quiet_ms:.1f} ms without, {rude_ms:.1f} ms with")
        assert rude_ms < NOTICED * max(quiet_ms, FLOOR_MS), f"the {name} was {quiet_ms:.0f} ms without {how}"
    assert peak - before < GROWTH_BYTES, f"memory grew by {(peak - before) / MIB:.0f} MiB"


def there_and_back(producer: pulsar.Producer, consumer: pulsar.Consumer) -> float:
    started_s = time.perf_counter()
    producer.send(b"polite")
    message = consumer.receive(WAIT_MS)
    consumer.acknowledge(message)
    return (time.perf_counter() - started_s) * 1000
