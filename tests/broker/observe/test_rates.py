"""Rates of counters: what was counted in a time of at most two periods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_on_spark.broker.observe.rates import Counters, RateMeter, Rates

PERIOD_S = 10.0


def at_rate(messages_per_s: float, seconds: int, step_s: int = 1) -> RateMeter:
    meter = RateMeter(0.0, Counters(0, 0), PERIOD_S)
    for now_s in range(step_s, seconds + 1, step_s):
        meter.sample(now_s, Counters(int(now_s * messages_per_s), int(now_s * messages_per_s) * 100))
    return meter


@pytest.mark.parametrize("seconds", [1, 9, 10, 11, 35, 600])
def test_a_steady_stream_has_its_rate_at_every_moment(seconds: int) -> None:
    rates = at_rate(50, seconds).rates(seconds, Counters(50 * seconds, 5000 * seconds))
    assert rates == Rates(50, 5000)


def test_a_burst_is_gone_after_two_periods() -> None:
    meter = RateMeter(0.0, Counters(0, 0), PERIOD_S)
    counted = Counters(1000, 1000)
    assert meter.rates(5.0, counted).messages == 200
    for now_s in (10.0, 20.0, 30.0):
        meter.sample(now_s, counted)
    assert meter.rates(30.0, counted) == Rates(0, 0)


def test_a_time_below_a_second_counts_as_a_second() -> None:
    meter = RateMeter(0.0, Counters(0, 0), PERIOD_S)
    assert meter.rates(0.001, Counters(3, 30)) == Rates(3, 30)


@given(st.lists(st.tuples(st.floats(0.01, 30), st.integers(0, 1000)), max_size=50))
def test_a_rate_is_never_negative_and_never_above_its_counter(steps: list[tuple[float, int]]) -> None:
    meter, now_s, total = RateMeter(0.0, Counters(0, 0), PERIOD_S), 0.0, 0
    for step_s, messages in steps:
        now_s, total = now_s + step_s, total + messages
        meter.sample(now_s, Counters(total, total))
        assert 0 <= meter.rates(now_s, Counters(total, total)).messages <= total
