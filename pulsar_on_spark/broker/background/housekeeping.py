"""Housekeeping of a broker: periodic passes of `maintain` in a child process at low priority.

A pass seals and trims the journals of dead brokers, audits and repairs copies, merges small segments, collects garbage,
expires subscriptions and keeps up the histories of topics. One pass runs at a time; the next one continues a pass that
was interrupted.

The journals that this broker recovers are sealed soon after the recovery. Until a journal is sealed, each reader of its
topics, and the next broker that takes the topics over, scans all of its frames. On an object store each frame costs a
request.
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

from pulsar_on_spark.broker.runtime.children import run_child
from pulsar_on_spark.broker.runtime.repeating import attempt
from pulsar_on_spark.history_table.upkeep import maintain_with_histories
from pulsar_on_spark.model import logs
from pulsar_on_spark.model.arrow_start import start_arrow_without_pandas
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.topic.catalog.policies.policies import Policies
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.maintenance.repair.limits import BESIDE_A_BROKER
from pulsar_on_spark.topic.managed_ledger.sealing.closed_journals import seal_closed

log = logging.getLogger("pulsar_on_spark.broker.background.housekeeping")  # in a pass, `__name__` is `__main__`

FIRST_AFTER_S: Final = 60.0
"""Delay of the first pass after the start, in seconds: clients reconnect before the pass begins."""
SEAL_AFTER_S: Final = 5.0
"""Delay of the sealing of recovered journals, in seconds: the clients of the dead brokers reconnect first."""
_NICE: Final = 10


class Housekeeping:
    """Periodic housekeeping passes of one broker, run until `stop`.

    Args:
        root: The root's directory or URL.
        interval_s: Seconds from the end of a pass to the next.
        replace_after_s: Seconds for which a storage path may be unreachable before its copies are restored on others.
        defaults: The broker's default policies.
        leads: Returns True while this broker is the one that runs the passes for the root.

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
        self._command = [sys.executable, "-m", __name__, str(root)]
        self._limits = [str(replace_after_s), policies]
        self._recovered = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self.passes = self.failed = 0

    def start(self) -> None:
        """Start the passes, and the sealing of recovered journals."""
        self._running = [asyncio.create_task(self._run()), asyncio.create_task(self._seal_recovered())]

    async def stop(self) -> None:
        """Stop the passes and the sealing, and terminate their running processes."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def on_journal_recovered(self) -> None:
        """Request a sealing of the closed journals, which begins `SEAL_AFTER_S` later."""
        self._recovered.set()

    async def _run(self) -> None:
        await asyncio.sleep(min(FIRST_AFTER_S, self._interval_s))
        while True:
            if self._leads():
                await attempt(self._pass, "Housekeeping cannot be started now")
            await asyncio.sleep(self._interval_s)

    async def _pass(self) -> None:
        code, _ = await run_child([*self._command, *self._limits])
        self.passes += 1
        if code:
            self.failed += 1
            log.warning("Housekeeping ended with code %d: see its log lines; the next pass tries again.", code)

    async def _seal_recovered(self) -> None:
        while True:
            await self._recovered.wait()
            await asyncio.sleep(SEAL_AFTER_S)
            self._recovered.clear()
            await attempt(self._seal, "Recovered journals cannot be sealed now, housekeeping seals them later")

    async def _seal(self) -> None:
        code, _ = await run_child(self._command)
        if code:
            log.warning("The sealing of recovered journals ended with code %d; housekeeping seals them later.", code)


def main() -> None:
    """Run one pass on the root of the first argument; without further arguments, only seal the closed journals.

    The second argument is the time in seconds after which the copies on an unreachable storage path are replaced, the
    third the broker's default policies as JSON. The process exits with code 1 if a step failed.
    """
    logs.configure_child()
    start_arrow_without_pandas()
    os.nice(_NICE)
    root = RootHandle.open(sys.argv[1])
    problems: list[str] = []
    if len(sys.argv) == 2:
        seal_closed(root, problems.append)
    else:
        replace_after_s, policies = sys.argv[2:]
        limits = replace(BESIDE_A_BROKER, replace_after=timedelta(seconds=float(replace_after_s)))
        defaults = Policies.model_validate_json(policies)
        problems.extend(maintain_with_histories(root, repair_limits=limits, defaults=defaults).problems)
    for problem in problems:
        log.warning("Housekeeping: %s", problem)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
