"""The costs of a Spark worker before and after a task."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsar_on_spark.root import Root

FROZEN = """
import gc
from pulsar_on_spark.datasource.worker_process import keep_modules
loaded = len(gc.get_objects())
keep_modules()
keep_modules()
print(gc.get_freeze_count() > loaded // 2, len(gc.get_objects()) < loaded // 10)
"""

OPENED = """
import sys
from pulsar_on_spark.root import Root
root = Root.open(sys.argv[1])
root.topics()
print("pandas" in sys.modules, "pyspark" in sys.modules)
"""


ENDED = """
import os, signal
from pulsar_on_spark.datasource.worker_process import end_by_exception
end_by_exception()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print("stopped")
"""


STOPPED_FIRST = """
import os, signal
from pulsar_on_spark.datasource.worker_process import end_by_exception, finish_undisturbed
end_by_exception()
finish_undisturbed()
os.kill(os.getpid(), signal.SIGTERM)
print("stopped")
"""


CLOSED_FIRST = """
import os, signal
from pulsar_on_spark.datasource.worker_process import end_by_exception, finish_undisturbed
def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    finish_undisturbed()
    print("stopped")
end_by_exception()
try:
    try:
        raise EOFError("the socket is closed")
    finally:
        stop()
except EOFError:
    pass
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_garbage_collections_skip_objects_loaded_before() -> None:
    assert run(FROZEN) == "True True"


def test_opening_a_root_loads_neither_pandas_nor_spark(root_with_topic: Root) -> None:
    """pandas alone takes half a second, at every command and in every worker."""
    assert run(OPENED, str(root_with_topic.path)) == "False False"


def test_a_worker_that_is_ended_stops_its_stream_whatever_the_process_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    assert run(ENDED) == run(STOPPED_FIRST) == run(CLOSED_FIRST) == "stopped"
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME")
    for code in (ENDED, STOPPED_FIRST):
        with pytest.raises(subprocess.CalledProcessError):
            run(code)
