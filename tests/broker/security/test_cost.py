"""Authorization costs nothing on the data path: messages are not authorized one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.broker.counted import MESSAGES, RECHECK, CountedBroker, Exchange, count, counted_broker
from pulsar_on_spark.broker.background.recheck import CHECK_EVERY_S

CALLS_OF_A_CHECK = 20
"""One if no metadata have changed, else some for each tenant and namespace: here are few."""
ROUNDS = 10_000 // MESSAGES


@pytest.mark.long
def test_messages_on_open_producers_and_consumers_are_not_authorized(tmp_path: Path) -> None:
    with counted_broker(tmp_path / "root", with_roles=True) as broker:
        counted = count(broker, "t", ROUNDS)
    assert counted.authorizing.keys() <= {RECHECK}
    assert counted.authorizing.total() <= CALLS_OF_A_CHECK * (counted.seconds / CHECK_EVERY_S + 1)
    assert counted.all > ROUNDS, "the event loop is counted"


def test_producers_and_consumers_are_authorized_when_they_are_opened(tmp_path: Path) -> None:
    with counted_broker(tmp_path / "root", with_roles=True) as broker, broker.counting() as counted:
        asyncio.run(open_and_close(broker))
    assert counted.authorizing["broker/runtime/access"] > 0


async def open_and_close(broker: CountedBroker) -> None:
    (await Exchange.open(broker, "t")).close()
