"""Requested work on topics: turns, states, failures and the end of the broker."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_on_spark.broker.runtime import topic_work
from pulsar_on_spark.broker.runtime.topic_work import TopicWork, WorkStatus
from pulsar_on_spark.model.errors import TopicBusyError
from pulsar_on_spark.model.names import TopicName

A, B, C = (TopicName.parse(name) for name in "abc")


def test_one_runs_at_a_time_and_each_outcome_is_remembered() -> None:
    async def scenario() -> None:
        work, go_on, begun = TopicWork("compaction"), asyncio.Event(), []

        async def wait() -> str | None:
            begun.append(A)
            await go_on.wait()
            return None

        async def fail() -> str | None:
            begun.append(B)
            return "It failed."

        async def not_start() -> str | None:
            raise OSError("no memory")

        assert work.status(A) == WorkStatus()
        work.begin(A, wait)
        work.begin(B, fail)
        work.begin(C, not_start)
        await asyncio.sleep(0)
        assert begun == [A]
        assert [work.status(topic).status for topic in (A, B, C)] == ["RUNNING"] * 3
        with pytest.raises(TopicBusyError, match=r"A requested compaction of topic .* is running already"):
            work.begin(B, fail)
        go_on.set()
        while any(work.is_running(topic) for topic in (A, B, C)):
            await asyncio.sleep(0)
        assert work.status(A) == WorkStatus("SUCCESS")
        assert work.status(B) == WorkStatus("ERROR", "It failed.")
        assert work.status(C) == WorkStatus("ERROR", "The compaction could not be started: no memory.")

    asyncio.run(scenario())


def test_the_end_of_the_broker_ends_what_runs_and_what_waits() -> None:
    async def scenario() -> None:
        work = TopicWork("offload")
        work.begin(A, _forever)
        work.begin(B, _forever)
        await asyncio.sleep(0)
        await work.stop()
        reason = "The offload was stopped together with the broker: request it again."
        assert {work.status(topic) for topic in (A, B)} == {WorkStatus("ERROR", reason)}
        assert not work.is_running(A)

    asyncio.run(scenario())


async def _forever() -> str | None:
    await asyncio.get_running_loop().create_future()
    return None


def test_a_limited_number_of_outcomes_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_work, "_MAX_KNOWN", 2)
    known: dict[TopicName, int] = {}
    for number, topic in enumerate((A, B, A, C)):
        topic_work.remember(known, topic, number)
    assert known == {A: 2, C: 3}


def test_work_that_waits_is_shown_as_running_however_many_outcomes_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_work, "_MAX_KNOWN", 1)

    async def scenario() -> None:
        work = TopicWork("offload")
        for topic in (A, B, C):
            work.begin(topic, _forever)
        assert [work.status(topic).status for topic in (A, B, C)] == ["RUNNING"] * 3
        await work.stop()

    asyncio.run(scenario())


def test_the_status_of_partitions_is_the_most_critical_one() -> None:
    ended, failed, running = WorkStatus("SUCCESS"), WorkStatus("ERROR", "x"), WorkStatus("RUNNING")
    assert WorkStatus.of_all([]) == WorkStatus()
    assert WorkStatus.of_all([ended, ended]) == ended
    assert WorkStatus.of_all([ended, WorkStatus()]) == WorkStatus()
    assert WorkStatus.of_all([ended, failed, WorkStatus()]) == failed
    assert WorkStatus.of_all([failed, running]) == running
