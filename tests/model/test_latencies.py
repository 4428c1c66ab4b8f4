from __future__ import annotations

import pytest

from pulsar_on_spark.model.latencies import BOUNDS_S, Latencies


def test_a_duration_counts_in_its_bucket_and_all_above() -> None:
    latencies = Latencies()
    for seconds in (0.0, 0.001, 0.0011, 60.0):  # a bound belongs to its bucket
        latencies.observe(seconds)
    found = dict(latencies.buckets())
    assert [found[bound] for bound in ("0.0005", "0.001", "0.002", "10.0", "+Inf")] == [1, 2, 3, 3, 4]
    assert latencies.sum_s == pytest.approx(60.0021)
    assert len(found) == len(BOUNDS_S) + 1


def test_a_failing_block_is_not_timed() -> None:
    latencies = Latencies()
    with pytest.raises(KeyError), latencies.timed():
        raise KeyError
    with latencies.timed():
        pass
    assert latencies.buckets()[-1] == ("+Inf", 1.0)
