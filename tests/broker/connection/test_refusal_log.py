"""A client cannot fill the broker's log with refused requests."""

from __future__ import annotations

from pulsar_on_spark.broker.connection.refusal_log import INTERVAL_S, LINES, RefusalLog


def test_the_first_refusals_of_an_interval_are_logged_and_the_others_counted() -> None:
    log = RefusalLog()
    assert log.take_unlogged(0.0) == 0
    assert [log.count_refusal(1.0) for _ in range(LINES + 5)] == [True] * LINES + [False] * 5
    assert log.take_unlogged(INTERVAL_S) == 0, "the interval begins with its first refusal"
    assert log.take_unlogged(1.0 + INTERVAL_S) == 5
    assert log.take_unlogged(1.0 + INTERVAL_S) == 0
    assert log.count_refusal(2.0 + INTERVAL_S)
    assert log.take_unlogged(9 * INTERVAL_S) == 0
