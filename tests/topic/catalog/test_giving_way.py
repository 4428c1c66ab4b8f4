"""Children that give way."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable

import pytest

from pulsar_on_spark.topic.catalog.giving_way import NICE, start_giving_way


def test_a_child_has_the_lower_priority_and_its_parent_keeps_its_own() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    start_giving_way(child)
    try:
        assert child.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(before + NICE, 19)
        assert os.getpriority(os.PRIO_PROCESS, 0) == before
    finally:
        child.kill()
        child.join()


def test_a_child_that_cannot_start_raises_in_the_caller() -> None:
    unpicklable: Callable[[], None] = lambda: None  # noqa: E731
    child = multiprocessing.get_context("spawn").Process(target=unpicklable)
    with pytest.raises(Exception, match="pickle"):
        start_giving_way(child)
