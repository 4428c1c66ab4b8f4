"""Periodic work continues after a failure."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsar_on_spark.broker.runtime.repeating import every
from pulsar_on_spark.model.errors import MetadataError


def test_any_failure_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        failures = [MetadataError("the disk is full"), OSError("no such file"), KeyError("a bug")]
        done = asyncio.Event()

        async def work() -> None:
            if failures:
                raise failures.pop(0)
            done.set()

        task = asyncio.create_task(every(0.001, work, "It cannot be looked at now"))
        async with asyncio.timeout(60):
            await done.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.WARNING, "It cannot be looked at now: the disk is full"),
        (logging.WARNING, "It cannot be looked at now: no such file"),
        (logging.ERROR, "It cannot be looked at now because of a bug in the broker; it is retried."),
    ]
    assert caplog.records[-1].exc_info is not None, "a fault is logged with its traceback"
