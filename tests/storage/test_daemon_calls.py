"""Calls in daemon threads: their results, and the end of a process that has some."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from pulsar_on_spark.storage.daemon_calls import start_call
from tests.kit.waiting import LIMIT_S

WAITING = """
from pulsar_on_spark.storage.daemon_calls import ENDING, start_call

def wait():
    ENDING.wait(600)
    print("ended", flush=True)

start_call(wait, "waiting")
"""
STUCK = """
import threading
from pulsar_on_spark.storage.daemon_calls import start_call

start_call(threading.Event().wait, "stuck")
"""


def test_a_call_has_a_result() -> None:
    assert start_call(lambda: 5, "five").result(LIMIT_S) == 5


def test_a_call_has_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        start_call(lambda: 1 // 0, "none").result(LIMIT_S)


@pytest.mark.parametrize(("script", "said"), [(WAITING, "ended\n"), (STUCK, "")])
def test_a_process_ends_without_its_calls(script: str, said: str) -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    assert time.monotonic() - began_s < LIMIT_S
