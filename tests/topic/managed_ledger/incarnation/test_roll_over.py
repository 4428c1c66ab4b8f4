"""Rollover: the limits at which a ledger ends by itself."""

from __future__ import annotations

import pytest

from pulsar_on_spark.topic.managed_ledger.incarnation.roll_over import RollOver

LIMITS = RollOver(max_entries=10, max_bytes=1000, max_age_s=100, min_age_s=5)


@pytest.mark.parametrize(
    ("entries", "size_bytes", "age_s", "is_due"),
    [
        (9, 999, 99, False),
        (10, 1, 6, True),
        (1, 1000, 6, True),
        (1, 1, 100, True),
        (10, 1000, 4, False),
        (0, 0, 1000, False),
    ],
)
def test_a_ledger_ends_by_entries_size_or_age(entries: int, size_bytes: int, age_s: float, is_due: bool) -> None:
    assert LIMITS.is_due(entries, size_bytes, age_s) is is_due
