"""The copies that a file lacks: its own write quorum or the root's, less the copies that count."""

from __future__ import annotations

import pytest

from pulsar_on_spark.metadata.records import FileRecord


@pytest.mark.parametrize(
    ("own_quorum", "copies", "holding", "missing"),
    [
        (0, (0, 1, 2), {0, 1, 2}, 0),
        (0, (0, 1, 2), {0, 2, 5}, 1),
        (0, (0, 1), {0, 1}, 1),
        (0, (), {0, 1}, 3),
        (2, (0, 1), {0, 1}, 0),
        (2, (0, 1), set(), 2),
        (0, (0, 1, 2, 3), {0, 1, 2, 3}, 0),
    ],
)
def test_missing_copies(own_quorum: int, copies: tuple[int, ...], holding: set[int], missing: int) -> None:
    file = FileRecord(file_id="f", write_id="w", copies=copies, write_quorum=own_quorum, length=1, batches=0)
    assert file.missing_copies(3, holding) == missing
