"""Child processes that give way: sealing a backlog, or reading one, must not hold up who publishes and follows."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Final

NICE: Final = 5
"""A quarter of a core is left to a child beside others that want it all.

Not less: one that is put off in the middle of a sync may hold up those of others on the same file system. Where ten
times as much was to do as two cores can, a burst was slower with 10 than with 0 in four of four turns, and not with 5.
"""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_LONGEST_DRAIN_S: Final = 90
"""A parent that was told to end has ended by then."""


def start_giving_way(process: BaseProcess) -> None:
    """Start a child whose priority is lower from its first instruction on: its imports alone take a second of CPU.

    In Linux a priority is a thread's, and children begin with that of the thread that starts them. So a thread of its
    own does, and the caller's priority stays. So it is with the signals that it blocks: those that end the child wait
    until it calls `leave_signals_to_parent`.

    Raises:
        OSError: it cannot be started.
    """

    def start() -> None:
        os.nice(NICE)
        resource_tracker.ensure_running()  # to start it would unblock them
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        process.start()

    with ThreadPoolExecutor(1, "start-giving-way") as thread:
        thread.submit(start).result()


def leave_signals_to_parent() -> None:
    """Called first in a child that gives way: it ends when its parent says so, or is gone.

    A terminal and a supervisor send SIGINT and SIGTERM to all processes at once, and while the parent drains it needs
    this one. Only where SIGTERM is not followed by the parent's end this one ends by itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_LONGEST_DRAIN_S))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
