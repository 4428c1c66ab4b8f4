"""Tests of walks over messages run twice: on numpy's and Python's loops, and on the compiled ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_on_spark.protocol import field_walk
from pulsar_on_spark.protocol.kernel_loading import KernelLoading
from pulsar_on_spark.topic.entries import batches

NEVER = 2**63


@pytest.fixture(scope="module", autouse=True, params=[NEVER, 0], ids=["plain", "compiled"])
def both_walks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the module's tests as in a process that walks few messages, and as in a process that walks many."""
    loading = KernelLoading(worth=request.param)
    assert (loading.kernels(1) is None) == (request.param == NEVER), "numba must be installed"
    with pytest.MonkeyPatch.context() as patch:
        for module in (field_walk, batches):
            patch.setattr(module, "LOADING", loading)
        yield
