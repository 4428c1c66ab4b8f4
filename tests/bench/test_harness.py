from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.harness import Benchmark, Goal, NotRunError, Side, measure, ratio, reached
from bench.payload import VALUE_SIZE_BYTES, value_batches, write_parquet, zstd_ratio


def test_rounds_alternate_after_a_warm_up_and_medians_are_taken():
    order: list[str] = []

    def side(name: str, numbers: list[float]) -> Side:
        return Side(name, lambda: order.append(name) or numbers.pop(0))

    work = Benchmark(
        "b", "ms", "", [side("one", [9.0, 7.0, 1.0, 5.0, 3.0]), side("two", [0.0, 9.0, 2.0, 2.0, 8.0])], []
    )
    result = measure(work, 3, lambda line: None)
    assert order == ["one", "two"] * 5
    assert result.medians() == {"one": 3.0, "two": 2.0}


def test_a_side_that_cannot_run_is_named_with_its_reason_and_leaves_its_ratios_open():
    def missing() -> float:
        raise NotRunError("Maven is missing")

    goal = Goal("one / two", ratio("one", "two"), at_least=1.0)
    result = measure(Benchmark("b", "ms", "", [Side("one", lambda: 1.0), Side("two", missing)], [goal]), 2, print)
    assert result.not_run == {"two": "Maven is missing"}
    assert reached(goal, result.medians()) is None
    assert '"not_run": "Maven is missing"' in json.dumps(result.as_json())


def test_an_error_of_a_side_ends_the_run():
    def broken() -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(Benchmark("b", "ms", "", [Side("one", broken)], []), 1, print)


def test_values_are_distinct_json_of_one_size_and_compress_like_events():
    values = next(value_batches(5_000)).column("value").to_pylist()
    assert {len(value) for value in values} == {VALUE_SIZE_BYTES}
    assert len({json.loads(value)["event_id"] for value in values}) == len(values)
    assert 3.0 < zstd_ratio() < 4.0


def test_the_same_seed_makes_the_same_values():
    assert next(value_batches(100)).equals(next(value_batches(100)))
    assert not next(value_batches(100)).equals(next(value_batches(100, seed=1)))


def test_a_folder_of_another_size_is_replaced_and_a_fitting_one_kept(tmp_path: Path):
    def counts() -> list[int]:
        return [pq.ParquetFile(file).metadata.num_rows for file in sorted(tmp_path.glob("data/*.parquet"))]

    write_parquet(tmp_path / "data", rows=300, rows_per_file=100)
    assert counts() == [100, 100, 100]
    write_parquet(tmp_path / "data", rows=150, rows_per_file=100)
    assert counts() == [100, 50]
    (tmp_path / "data" / "part-000.parquet").unlink()
    write_parquet(tmp_path / "data", rows=150, rows_per_file=100)
    assert counts() == [50]
