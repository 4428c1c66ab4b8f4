"""Calls in daemon threads, which do not delay the end of the process as the threads of a pool do."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar
from weakref import WeakSet

END_S: Final = 1.0
"""Longest wait for calls at the end of the process, in seconds: a library may fail if it is stopped during a call."""
ENDING: Final = threading.Event()
"""Set when the process ends; calls that wait for a store then return."""
_running: Final[WeakSet[threading.Thread]] = WeakSet()
_running_lock: Final = threading.Lock()

_T = TypeVar("_T")


def start_call(call: Callable[[], _T], name: str) -> Future[_T]:
    """Call a function in a daemon thread.

    Args:
        call: The function. If it waits, it must also return when `ENDING` is set.
        name: The thread's name.

    Returns:
        The future of the call's result or error. The call has begun, so the future cannot be cancelled.

    Raises:
        RuntimeError: the system starts no more threads.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    with _running_lock:
        _running.add(thread)
    return future


@atexit.register
def _end() -> None:
    """Set `ENDING`, and wait up to `END_S` for the calls to end."""
    ENDING.set()
    until_s = time.monotonic() + END_S
    with _running_lock:
        running = list(_running)
    for thread in running:
        thread.join(max(0.0, until_s - time.monotonic()))
