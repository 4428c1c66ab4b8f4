"""Spark's Python daemon, without a stack trace for each idle worker that Spark closes.

Spark closes a Python worker that was idle for a minute. Over a Unix-domain socket the worker then fails to write its
last message, and pyspark 4.2.0 prints a BrokenPipeError, although nothing is wrong. Sessions name this module in
`spark.python.daemon.module` for the workers that run tasks. Spark does not use this setting for the workers that plan;
they call `end_quietly` when the data source is loaded.

Workers are forked from the process that loads this module, so it imports nothing that starts threads.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Protocol, cast

from pyspark import daemon


class Daemon(Protocol):
    """The daemon's module, which looks up its `worker` whenever a worker waits for a task."""

    worker: Callable[[socket.socket, bool], int]


def end_quietly() -> None:
    """In a worker forked from Spark's own daemon, ignore a failure to write the last message."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == daemon.__name__:
        forgive_closed_sockets(cast(Daemon, main))


def forgive_closed_sockets(module: Daemon) -> None:
    """Let a worker with a closed socket end like a failed one; other errors keep their stack."""
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
