"""Child processes that give way: sealing a backlog, or reading one, must not hold up who publishes and follows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Final

NICE: Final = 5
"""A quarter of a core is left to a child beside others that want it all.

Not less: one that is put off in the middle of a sync may hold up those of others on the same file system. Where ten
times as much was to do as two cores can, a burst was slower with 10 than with 0 in four of four turns, and not with 5.
"""


def start_giving_way(process: BaseProcess) -> None:
    """Start a child whose priority is lower from its first instruction on: its imports alone take a second of CPU.

    In Linux a priority is a thread's, and children begin with that of the thread that starts them. So a thread of its
    own does, and the caller's priority stays.

    Raises:
        OSError: it cannot be started.
    """

    def start() -> None:
        os.nice(NICE)
        process.start()

    with ThreadPoolExecutor(1, "start-giving-way") as thread:
        thread.submit(start).result()
