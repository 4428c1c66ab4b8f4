"""Spark's Python daemon, without a stack trace for each idle worker that Spark closes.

Spark closes a Python worker that was idle for a minute. Over a Unix-domain socket, the worker then fails to write its
last message, and pyspark 4.2.0 prints a BrokenPipeError, although nothing is wrong. Sessions name this module in
`spark.python.daemon.module` for the workers that run tasks. Spark does not use this setting for workers that plan or
commit; they call `end_quietly` when they load the data source.

Workers are forked from the process that loads this module, so this module imports nothing that starts threads.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Protocol, cast

from pyspark import daemon


class Daemon(Protocol):
    """The module of Spark's daemon, which looks up its function `worker` for each task."""

    worker: Callable[[socket.socket, bool], int]


def end_quietly() -> None:
    """Ignore a failure to write the last message, if this process is a worker of Spark's own daemon."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == daemon.__name__:
        forgive_closed_sockets(cast(Daemon, main))


def forgive_closed_sockets(module: Daemon) -> None:
    """Replace the module's `worker` by a function that returns 1 for a closed socket, without printing a stack.

    Other errors keep their stack.
    """
    run = module.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return run(sock, authenticated)
        except BrokenPipeError:
            return 1

    module.worker = worker


if __name__ == "__main__":
    forgive_closed_sockets(cast(Daemon, daemon))
    daemon.manager()
