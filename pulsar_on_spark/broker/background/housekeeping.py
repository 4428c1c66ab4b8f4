"""Housekeeping of a broker: periodic passes of `maintain` in a child process at low priority.

A pass seals and trims the journals of dead brokers, audits and repairs copies, merges small segments, collects garbage
and expires subscriptions. One pass runs at a time; the next one continues a pass that was interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pulsar_on_spark.broker.runtime.children import ended_if_cancelled
from pulsar_on_spark.broker.runtime.repeating import attempt
from pulsar_on_spark.model import logs
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.maintain import maintain
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER

log = logging.getLogger("pulsar_on_spark.broker.background.housekeeping")  # in a pass, `__name__` is `__main__`

FIRST_AFTER_S: Final = 60.0
"""Delay of the first pass after the start, in seconds: clients come first, then the journals of a killed broker."""
_NICE: Final = 10


class Housekeeping:
    """Runs passes until it is stopped.

    Args:
        root: The root.
        interval_s: Seconds from the end of a pass to the next.
        replace_after_s: Seconds that a storage path may be missing before its copies are restored on other paths.
        defaults: The broker's own policies.
        leads: Returns True while the passes are this broker's task.

    Attributes:
        passes: Number of completed passes.
        failed: Number of completed passes in which a step failed.
    """

    def __init__(
        self,
        root: RootPlace,
        interval_s: float,
        replace_after_s: float,
        defaults: Policies,
        leads: Callable[[], bool],
    ) -> None:
        self._leads = leads
        self._interval_s = interval_s
        policies = defaults.model_dump_json(by_alias=True)
        self._command = [sys.executable, "-m", __name__, str(root), str(replace_after_s), policies]
        self._running: asyncio.Task[None] | None = None
        self.passes = self.failed = 0

    def start(self) -> None:
        """Start the passes."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the passes, and terminate a running one."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(min(FIRST_AFTER_S, self._interval_s))
        while True:
            if self._leads():
                await attempt(self._pass, "Housekeeping cannot be started now")
            await asyncio.sleep(self._interval_s)

    async def _pass(self) -> None:
        process = await asyncio.create_subprocess_exec(*self._command)
        async with ended_if_cancelled(process):
            code = await process.wait()
        self.passes += 1
        if code:
            self.failed += 1
            log.warning("Housekeeping ended with code %d: see its log lines; the next pass tries again.", code)


def main() -> None:
    """Run one pass. Arguments: the root, the seconds that a path may be missing, and the broker's policies as JSON.

    Exits with 1 if a step failed.
    """
    logs.configure_child()
    os.nice(_NICE)
    root, replace_after_s, policies = sys.argv[1:]
    limits = replace(BESIDE_A_BROKER, replace_after=timedelta(seconds=float(replace_after_s)))
    report = maintain(RootHandle.open(root), repair_limits=limits, defaults=Policies.model_validate_json(policies))
    for problem in report.problems:
        log.warning("Housekeeping: %s", problem)
    if report.problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
