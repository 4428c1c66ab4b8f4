"""Child processes that give way: sealing a backlog, or reading one, must not hold up who publishes and follows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess


def start_giving_way(process: BaseProcess, nice: int) -> None:
    """Start a child whose priority is lower from its first instruction on: its imports alone take a second of CPU.

    In Linux a priority is a thread's, and children begin with that of the thread that starts them. So a thread of its
    own does, and the caller's priority stays.

    Args:
        process: The child, not started yet.
        nice: By how much its priority is lower, as `nice(1)` counts.

    Raises:
        OSError: it cannot be started.
    """

    def start() -> None:
        os.nice(nice)
        process.start()

    with ThreadPoolExecutor(1, "start-giving-way") as thread:
        thread.submit(start).result()
