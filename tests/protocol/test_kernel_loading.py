"""Loading of the compiled loops: only where they pay, and never needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pulsar_on_spark.protocol.kernel_loading import KernelLoading

WALK = """
import sys
from pulsar_on_spark.protocol import kernel_loading
assert kernel_loading.LOADING.kernels(kernel_loading.WORTH_MESSAGES) is None
assert "numba" not in sys.modules
kernels = kernel_loading.LOADING.kernels(1)
import numpy as np
data = np.frombuffer(b"\\0\\0\\0\\x02\\x18\\x01x" * 3, np.uint8)
starts, ends, messages = (np.array(each) for each in ((0, 7), (7, 21), (1, 2)))
bounds, found = np.empty((3, 3), np.int64), np.empty(2, np.int64)
kernels.walk_chains(data, starts, ends, messages, bounds, found)
print(found.tolist(), bounds.tolist())
"""


def test_a_process_that_walks_few_messages_does_not_load_them() -> None:
    loading = KernelLoading(worth=10)
    assert loading.kernels(4) is None
    assert loading.kernels(6) is None
    assert loading.kernels(1) is not None


def test_without_numba_messages_are_walked_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "pulsar_on_spark.protocol.kernels", raising=False)
    loading = KernelLoading(worth=0)
    assert loading.kernels(1) is None
    monkeypatch.undo()
    assert loading.kernels(1) is None, "it does not try the import for each walk"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="with a place for compiled loops"),
        # A locator that finds no place is numba's way to say that no folder can be written.
        pytest.param({"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}, id="without a place"),
    ],
)
def test_a_process_that_walks_many_messages_loads_them(more: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    walked = subprocess.run(
        [sys.executable, "-c", WALK], env=environment | more, capture_output=True, text=True, timeout=300, check=False
    )
    assert walked.stdout.strip() == "[1, 2] [[4, 6, 7], [11, 13, 14], [18, 20, 21]]", walked.stderr
