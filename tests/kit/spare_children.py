"""Child processes that are forked early, and become what `multiprocessing` would start as a fresh Python.

A broker starts processes of its own, each of which imports for a second what the broker has imported already. Once the
broker has threads it cannot fork them; so they are forked before, and wait. They are its children like others, with the
descriptors, environment, priority and blocked signals that a fresh Python would have.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import util
from threading import Lock
from typing import Any, NoReturn

_REQUEST_BYTES = 1 << 17
"""Environments are a few KiB."""


def fork_spare_children(number: int) -> None:
    """Fork them; returns in the caller only, whose next children take their place. Later ones are fresh Pythons."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(number):
        if os.fork() == 0:
            ours.close()
            _end(_wait_and_become(theirs))
    theirs.close()
    start_fresh = util.spawnv_passfds
    one_at_a_time = Lock()
    left = number

    def start(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        nonlocal left
        with one_at_a_time:
            if left == 0:
                return start_fresh(path, args, passfds)
            left -= 1
            request = {
                "arguments": [os.fsdecode(argument) for argument in args],
                "descriptors": list(passfds),
                "environment": dict(os.environ),
                "nice": os.nice(0),
                "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            }
            socket.send_fds(ours, [json.dumps(request).encode()], passfds)
            return int(ours.recv(_REQUEST_BYTES))

    util.spawnv_passfds = start


def _wait_and_become(parent: socket.socket) -> int:
    """Run the program of the parent's request as `python -c` does; returns its exit code, at once without a request."""
    message, received, _, _ = socket.recv_fds(parent, _REQUEST_BYTES, 16)
    if not message:
        return 0
    parent.send(str(os.getpid()).encode())
    parent.close()
    request = json.loads(message)
    wanted = request["descriptors"]
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(wanted) + 1) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(above, wanted, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.nice(request["nice"] - os.nice(0))
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    option = request["arguments"].index("-c")
    program = request["arguments"][option + 1]
    sys.argv[:] = ["-c", *request["arguments"][option + 2 :]]
    try:
        exec(program, {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as what `multiprocessing` itself forks: freeing what the parent had imported takes longer than most tests."""
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:  # as the resource tracker's output is
            stream.flush()
    os._exit(code)
