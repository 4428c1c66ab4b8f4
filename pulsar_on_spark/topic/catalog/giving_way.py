"""Child processes of low priority: sealing or reading a backlog must not delay publishing and tailing readers.

A fork server makes them. It has imported their modules once, so that a child begins within 10 ms of CPU instead of half
a second, and the children share the memory of the modules. Unlike a broker, the server may fork: it has used no object
store, and its only threads are those of OpenBLAS and jemalloc, which both prepare for forks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Final

CONTEXT: Final = get_context("forkserver")
"""The context of the children, of their pipes and of the memory that they share with their parent."""

NICE: Final = 5
"""Niceness of the children, with which a child still gets a quarter of a fully loaded core.

Not higher, because a child that is preempted during a sync may delay other processes' syncs on the same file system. At
ten times the load that two cores can carry, a niceness of 10 slowed a burst down in four of four runs; 5 did not.
"""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_LONGEST_DRAIN_S: Final = 90
"""Seconds that a parent may need to end after SIGTERM."""


def start_fork_server(modules: Sequence[str]) -> None:
    """Start the server, which imports modules for its children while this process continues. It ends with this process.

    Without this call the first child starts a server without imports, and each child imports its modules itself.

    Args:
        modules: Names of the modules; they must start no thread. One that cannot be imported is left to the children.

    Raises:
        OSError: the server cannot be started.
    """
    forkserver.set_forkserver_preload(list(modules))
    _without_signals(forkserver.ensure_running)


def start_giving_way(process: ForkServerProcess) -> None:
    """Start a child process of `CONTEXT`, which must call `give_way` first.

    This waits for the imports of a server that was started just now.

    Raises:
        OSError: the child cannot be started.
    """
    _without_signals(process.start)


def _without_signals(start: Callable[[], None]) -> None:
    """Call `start`, which starts the server or a child of it, with the signals blocked that would end a child.

    In Linux, a process inherits blocked signals from the thread that starts it, and so do its own children, until they
    call `give_way`. A new thread blocks them and starts the server; the caller's thread is not affected.
    """

    def do() -> None:
        resource_tracker.ensure_running()  # starting the tracker later would unblock the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        start()

    with ThreadPoolExecutor(1, "start-giving-way") as thread:
        thread.submit(do).result()


def give_way() -> None:
    """Lower the priority of this child process, and leave it to the parent to end it. The child must call this first.

    Terminals and supervisors send SIGINT and SIGTERM to all processes of a group, but the parent needs this child while
    it drains. The child therefore ends by itself only if it still runs `_LONGEST_DRAIN_S` after SIGTERM.
    """
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_LONGEST_DRAIN_S))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
