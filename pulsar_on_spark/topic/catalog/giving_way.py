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

Not more: a child that is preempted during a sync may delay the syncs of others on the same file system. At ten times
the load that two cores can carry, a burst was slower with 10 than with 0 in four of four runs, but not with 5.
"""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_LONGEST_DRAIN_S: Final = 90
"""Time in which a parent ends after SIGTERM."""


def start_giving_way(process: BaseProcess) -> None:
    """Start a child process that has lower priority from its first instruction on: its imports take a second of CPU.

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
    """Let the parent end this child process; the child must call this first.

    Terminals and supervisors send SIGINT and SIGTERM to all processes of a group, but the parent needs this child while
    it drains. The child therefore ends by itself only if the parent is still alive a while after SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_LONGEST_DRAIN_S))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
