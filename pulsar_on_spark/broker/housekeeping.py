"""Housekeeping beside a broker: `maintain` now and then, in a process of its own at low priority.

It seals and trims what dead brokers have left, audits and repairs copies, merges small segments, collects garbage and
expires subscriptions. One pass at a time; a pass that is cut off is taken up by the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

from pulsar_on_spark.topic.housekeeping.maintain import maintain
from pulsar_on_spark.topic.policies.policies import Policies
from pulsar_on_spark.topic.root import Root

log = logging.getLogger(__name__)

FIRST_AFTER_S: Final = 60.0
"""The first pass comes so long after the start: what a killed broker left is sealed soon, and clients come first."""
_NICE: Final = 10
_STOP_TIMEOUT_S: Final = 5.0


class Housekeeping:
    """Runs passes until it is stopped.

    Args:
        root: The root.
        interval_s: From the end of a pass to the next.
        defaults: The broker's own policies.
    """

    def __init__(self, root: Path, interval_s: float, defaults: Policies) -> None:
        self._root = root
        self._interval_s = interval_s
        self._defaults = defaults.model_dump_json(by_alias=True)
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, with the pass that is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(min(FIRST_AFTER_S, self._interval_s))
        while True:
            await self._pass()
            await asyncio.sleep(self._interval_s)

    async def _pass(self) -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, str(self._root), self._defaults)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
            raise
        if code:
            log.warning("Housekeeping ended with code %d: its log lines say why, and the next pass tries again.", code)


def main() -> None:
    """One pass over the root that is the first argument; the second is a broker's policies as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(_NICE)
    done = maintain(Root.open(sys.argv[1]), defaults=Policies.model_validate_json(sys.argv[2]))
    for problem in done.problems:
        log.warning("Housekeeping: %s", problem)


if __name__ == "__main__":
    main()
