"""Children that give way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import pytest

from pulsar_on_spark.cli.standalone import MODULES_OF_CHILDREN
from pulsar_on_spark.topic.catalog.giving_way import CONTEXT, NICE, give_way, start_giving_way


def tell_priority(parent: Connection) -> None:
    give_way()
    parent.send(os.getpriority(os.PRIO_PROCESS, 0))


def test_a_child_has_the_lower_priority_and_its_parent_keeps_its_own() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=tell_priority, args=(theirs,), daemon=True)
    start_giving_way(child)
    theirs.close()
    assert ours.recv() == min(before + NICE, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    child.join()


def test_a_child_that_cannot_start_raises_in_the_caller() -> None:
    unpicklable: Callable[[], None] = lambda: None  # noqa: E731
    child = CONTEXT.Process(target=unpicklable)
    with pytest.raises(Exception, match="pickle"):
        start_giving_way(child)


PARENT = """
import sys
from pulsar_on_spark.topic.catalog.giving_way import CONTEXT, start_fork_server, start_giving_way
from tests.topic.catalog.test_giving_way import look

if __name__ == "__main__":
    start_fork_server(sys.argv[1:])
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=look, args=(theirs, sys.argv[1:]))
    start_giving_way(child)
    theirs.close()
    print(ours.recv())
    child.join()
"""


def look(parent: Connection, modules: Sequence[str]) -> None:
    """Send what a child has: the missing modules, the number of its threads, and its blocked signals."""
    missing = [name for name in modules if name not in sys.modules]
    give_way()
    parent.send((missing, threading.active_count(), signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def test_a_child_of_a_broker_has_the_imports_of_the_server(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    """The server ignores modules that are not there, so this also finds a wrong name."""
    said, _ = start_python(PARENT, *MODULES_OF_CHILDREN).communicate(timeout=60)
    assert said == "([], 1, set())\n"
