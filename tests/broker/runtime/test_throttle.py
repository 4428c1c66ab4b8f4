"""Rates: the average keeps to the limit, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.runtime.throttle import MAX_DEBT_S, Throttle


def test_a_throttle_without_limits_never_waits() -> None:
    throttle = Throttle()
    assert throttle.is_unlimited
    assert throttle.spend_tokens(0, 10**9, 10**12) == 0


def test_a_burst_of_one_period_is_allowed() -> None:
    throttle = Throttle(messages=10)
    assert throttle.spend_tokens(0, 10, 0) == 0
    assert throttle.spend_tokens(0, 1, 0) == pytest.approx(0.1)
    assert throttle.wait_s(0.1) == pytest.approx(0)
    assert throttle.spend_tokens(100, 10, 0) == 0, "no more than a period is saved up"


def test_the_stricter_limit_counts() -> None:
    throttle = Throttle(messages=10, size_bytes=100)
    assert throttle.spend_tokens(0, 1, 300) == pytest.approx(2)
    assert throttle.spend_tokens(2, 110, 0) == pytest.approx(10)


def test_extra_allowance_is_added_for_one_period() -> None:
    throttle = Throttle(messages=10)
    throttle.give(1, 50, 0)
    assert throttle.spend_tokens(1, 60, 0) == 0
    assert throttle.spend_tokens(1, 1, 0) == pytest.approx(0.1)
    throttle.give(3, 50, 0)
    assert throttle.wait_s(3.5) == 0
    throttle.give(5, 1, 0)
    assert throttle.spend_tokens(5, 11, 0) == 0
    assert throttle.spend_tokens(5, 1, 0) == pytest.approx(0.1), "the other 50 are gone"
    throttle.set_rate(-1, -1)
    throttle.give(6, 1, 1)
    assert throttle.spend_tokens(6, 10**6, 0) == 0


def test_a_debt_is_bounded() -> None:
    throttle = Throttle(messages=1, period_s=2)
    assert throttle.spend_tokens(0, 10**6, 0) == pytest.approx(MAX_DEBT_S)


def test_changed_limits_restart_the_throttle() -> None:
    throttle = Throttle(messages=1)
    throttle.spend_tokens(0, 10, 0)
    throttle.set_rate(1, -1)
    assert throttle.wait_s(0) > 0, "the same limits"
    throttle.set_rate(5, -1)
    assert throttle.wait_s(0) == 0
    throttle.set_rate(-1, -1)
    assert throttle.is_unlimited


@given(st.lists(st.integers(1, 9), min_size=1, max_size=100), st.integers(3, 50), st.integers(1, 5))
def test_the_average_keeps_to_the_rate(sizes: list[int], limit: int, period_s: int) -> None:
    throttle, now_s, taken = Throttle(messages=limit, period_s=period_s), 0.0, 0
    for size in sizes:
        now_s += throttle.wait_s(now_s)
        throttle.spend_tokens(now_s, size, 0)
        taken += size
    assert taken - sizes[-1] <= limit + now_s * limit / period_s + 1e-6
