"""A close, unload or load of a topic waits for the last entries of its open ledger."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, OpenLedger, settle_entries

PART = TopicPart("persistent://public/default/t", "0123456789abcdef" * 2, -1)


def test_all_waiters_get_the_last_outcome() -> None:
    async def scene() -> None:
        ledger = OpenLedger(PART, LedgerId(1), next=2, outstanding=2)
        waiting = [asyncio.create_task(ledger.wait_until_drained()) for _ in range(3)]
        await asyncio.sleep(0)
        ledger.count_outcomes(1)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        ledger.count_outcomes(1)
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        await ledger.wait_until_drained()

    asyncio.run(scene())


def test_outcomes_of_one_group_are_settled_with_each_ledger() -> None:
    one, other = (OpenLedger(PART, LedgerId(number), next=3, outstanding=3) for number in (1, 2))
    settle_entries(Appended(ledger, EntryId(entry), 1, None) for ledger, entry in ((one, 0), (other, 0), (one, 1)))
    assert (one.outstanding, other.outstanding) == (1, 2)


def test_a_retired_ledger_wakes_its_closer_at_the_last_outcome() -> None:
    drained = asyncio.Event()
    ledger = OpenLedger(PART, LedgerId(1), next=2, outstanding=2)
    ledger.retire(drained)
    ledger.count_outcomes(1)
    assert not drained.is_set()
    ledger.count_outcomes(1)
    assert drained.is_set()
    drained.clear()
    OpenLedger(PART, LedgerId(2)).retire(drained)
    assert not drained.is_set(), "a ledger without open outcomes is closed at once by its closer"
