"""Large answers are sent one at a time, and wait while the client does not read."""

from __future__ import annotations

import asyncio

from pulsar_on_spark.broker.connection.large_answers import LargeAnswers


def test_large_answers_take_turns_and_wait_for_room() -> None:
    async def scenario() -> None:
        unread, most_under_way, under_way = 0, 0, 0
        answers = LargeAnswers(lambda: unread < 3)

        async def answer() -> None:
            nonlocal unread, under_way, most_under_way
            async with answers.turn():
                under_way += 1
                most_under_way = max(most_under_way, under_way)
                await asyncio.sleep(0)
                unread += 1
                under_way -= 1

        tasks = [asyncio.create_task(answer()) for _ in range(10)]
        for read in range(3, 12, 3):
            while unread < 3 and not all(task.done() for task in tasks):
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert sum(task.done() for task in tasks) == read
            unread = 0
            answers.room_changed()
        await asyncio.gather(*tasks)
        assert most_under_way == 1

    asyncio.run(asyncio.wait_for(scenario(), 60))
