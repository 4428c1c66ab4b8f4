"""A busy broker and an idle one."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.kit.running_broker import RUN_COMMAND, RunningBroker
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.long
TOPICS = 16
SHED = "pulsarpy_bundles_shed_total"


HURRIED = f"""
from pulsar_on_spark.broker.cluster import balancer, load, load_reports
load_reports.REPORT_EVERY_S, balancer.ROUND_S = 0.5, 1.0
load.SETTLED_S, load.STRONG, load.WEAK = 5.0, 6.0, 4.0
{RUN_COMMAND}"""
"""Runs a broker that decides each second, after a few seconds without a move, about small differences."""


def test_bundles_go_from_a_busy_broker_to_an_idle_one_unless_that_is_switched_off(memory_path: Path) -> None:
    root, topics = memory_path / "root", [f"t-{number}" for number in range(TOPICS)]
    script = memory_path / "hurried.py"
    script.write_text(HURRIED)
    hurried = (sys.executable, str(script))
    with RunningBroker(root, prefix=hurried) as one:
        switch = f"{one.web_url}/admin/v2/brokers/configuration/loadBalancerSheddingEnabled"
        httpx.post(f"{switch}/false").raise_for_status()
        client = pulsar.Client(one.url)
        producers = {topic: client.create_producer(topic, batching_enabled=False) for topic in topics}
        with RunningBroker(root, prefix=hurried) as two:
            lookups = [f"{two.web_url}/lookup/v2/topic/persistent/public/default/{topic}" for topic in topics]

            def owners() -> set[str]:
                return {httpx.get(lookup, timeout=30).raise_for_status().json()["brokerUrl"] for lookup in lookups}

            wait_until(
                lambda: "broker-loads" in {path.name for path in (root / "leases").iterdir()},
                "the first report is written",
            )
            done = threading.Event()

            def send() -> None:
                while not done.is_set():
                    for producer in producers.values():
                        producer.send_async(bytes(100), lambda result, message_id: None)
                    for producer in producers.values():
                        producer.flush()

            sending = threading.Thread(target=send)
            sending.start()
            try:
                done.wait(15)
                assert (owners(), one.metric(SHED)) == ({one.url}, 0)
                httpx.post(f"{switch}/true").raise_for_status()
                wait_until(lambda: one.metric(SHED) > 0, "the busy broker gives up bundles", limit_s=60)
                wait_until(lambda: owners() == {one.url, two.url}, "the idle one has them", limit_s=60)
            finally:
                done.set()
                sending.join()
            client.close()
    assert "which is less busy" in one.said
