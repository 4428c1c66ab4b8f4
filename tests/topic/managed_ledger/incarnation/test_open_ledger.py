"""An open ledger's last entries are waited for by whoever closes, unloads or loads its topic."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import OpenLedger

PART = TopicPart("persistent://public/default/t", "0123456789abcdef" * 2, -1)


def test_all_who_wait_hear_of_the_last_outcome() -> None:
    async def scene() -> None:
        ledger = OpenLedger(PART, LedgerId(1), next=2, outstanding=2)
        waiting = [asyncio.create_task(ledger.drained()) for _ in range(3)]
        await asyncio.sleep(0)
        ledger.settle(1)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        ledger.settle(1)
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        await ledger.drained()

    asyncio.run(scene())
