"""Time for which states have been unchanged."""

from __future__ import annotations

from pulsar_on_spark.broker.runtime.unchanged import Unchanged


def test_the_time_runs_while_the_state_is_unchanged_and_restarts_otherwise() -> None:
    unchanged = Unchanged[str, int]()
    assert unchanged.record_scan(10.0, {"a": 1, "b": 1}) == {"a": 0.0, "b": 0.0}
    assert unchanged.record_scan(15.0, {"a": 1, "b": 2}) == {"a": 5.0, "b": 0.0}
    assert unchanged.record_scan(16.0, {"b": 2, "c": 1}) == {"b": 1.0, "c": 0.0}
    assert unchanged.record_scan(20.0, {"a": 1, "b": 2}) == {"a": 0.0, "b": 5.0}, "it was gone meanwhile"
    assert unchanged.record_scan(21.0, {}) == {}
