"""Failed authentications of each host. Pure."""

from __future__ import annotations

from pulsar_on_spark.security.limits import MAX_HOSTS, WINDOW_S, FailureCounts


def test_failures_count_by_host_and_minute() -> None:
    counts = FailureCounts()
    assert [counts.note("a", float(second)) for second in range(3)] == [1, 2, 3]
    assert counts.note("b", 3.0) == 1
    assert counts.note("a", WINDOW_S) == 1
    assert counts.note("a", 2 * WINDOW_S - 0.1) == 2


def test_hosts_are_bounded_and_the_oldest_is_forgotten() -> None:
    counts = FailureCounts()
    counts.note("first", 0.0)
    counts.note("second", 0.0)
    for number in range(MAX_HOSTS - 1):
        counts.note(f"10.{number}", 1.0)
    assert counts.note("second", 1.0) == 2
    assert counts.note("first", 1.0) == 1
