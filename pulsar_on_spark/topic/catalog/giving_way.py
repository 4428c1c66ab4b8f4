"""Child processes of low priority: sealing or reading a backlog must not delay publishing and tailing readers."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Final

NICE: Final = 5
"""Niceness of the children, with which a child still gets a quarter of a fully loaded core.

Not higher, because a child that is preempted during a sync may delay other processes' syncs on the same file system. At
ten times the load that two cores can carry, a niceness of 10 slowed a burst down in four of four runs; 5 did not.
"""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_LONGEST_DRAIN_S: Final = 90
"""Seconds that a parent may need to end after SIGTERM."""


def start_giving_way(process: BaseProcess) -> None:
    """Start a child process with lower priority even for its imports, which take a second of CPU.

    In Linux, a child inherits priority and blocked signals from the thread that starts it. A new thread therefore
    lowers its priority, blocks the signals that would end the child before it calls `leave_signals_to_parent`, and
    starts the child; the caller's thread is not affected.

    Raises:
        OSError: the child cannot be started.
    """

    def start() -> None:
        os.nice(NICE)
        resource_tracker.ensure_running()  # starting the tracker later would unblock the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        process.start()

    with ThreadPoolExecutor(1, "start-giving-way") as thread:
        thread.submit(start).result()


def leave_signals_to_parent() -> None:
    """Leave it to the parent to end this child process. The child must call this first.

    Terminals and supervisors send SIGINT and SIGTERM to all processes of a group, but the parent needs this child while
    it drains. The child therefore ends by itself only if it still runs `_LONGEST_DRAIN_S` after SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_LONGEST_DRAIN_S))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
