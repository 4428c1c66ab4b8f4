"""The wait before refusals of a source that fails often."""

from __future__ import annotations

import asyncio
import json

from pulsar_on_spark.broker.runtime.slow_refusals import SlowRefusals
from pulsar_on_spark.security.audit_log import Audit, AuditLogger
from pulsar_on_spark.security.limits import DELAY_S, FREE_FAILURES, MAX_WAITING


class Lines(AuditLogger):
    def __init__(self) -> None:
        self.all: list[str] = []

    def write(self, line: str) -> None:
        self.all.append(line)


def test_a_guesser_gains_nothing_by_further_addresses_of_its_prefix() -> None:
    written = Lines()

    async def scene() -> float:
        slow = SlowRefusals(Audit(written))
        begun = asyncio.get_running_loop().time()
        for number in range(FREE_FAILURES + 1):
            assert await slow.turn(f"2001:db8::{number:x}:5000{number % 10}")
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(scene()) >= DELAY_S
    assert [json.loads(line)["operation"] for line in written.all] == ["SLOW_DOWN"]


def test_answers_wait_above_the_limit_and_only_a_limited_number_of_them() -> None:
    written = Lines()

    async def scene() -> list[tuple[bool, float]]:
        slow = SlowRefusals(Audit(written))
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def one(address: str) -> tuple[bool, float]:
            return await slow.turn(address), loop.time() - begun

        for port in range(FREE_FAILURES):
            assert await slow.turn(f"10.0.0.1:{port}")
        waiting = [asyncio.create_task(one("10.0.0.1:1")) for _ in range(MAX_WAITING + 5)]
        await asyncio.sleep(0)
        assert await one("10.0.0.2:1") < (True, DELAY_S), "another host does not wait"
        found = await asyncio.gather(*waiting)
        assert (await one("10.0.0.1:1"))[0], "there is room again"
        return found

    found = asyncio.run(scene())
    assert [is_answered for is_answered, _ in found] == [True] * MAX_WAITING + [False] * 5
    assert min(waited for is_answered, waited in found if is_answered) >= DELAY_S
    assert max(waited for is_answered, waited in found if not is_answered) < DELAY_S
    (noted,) = map(json.loads, written.all)
    assert (noted["operation"], noted["address"]) == ("SLOW_DOWN", "10.0.0.1:1")
