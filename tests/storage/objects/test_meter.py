from __future__ import annotations

from ctypes import c_int64

import pytest

from pulsar_on_spark.storage.objects.meter import CELLS, Operation, RequestMeter, Result, counts_in, result_of


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (404, Result.ABSENT),
        (409, Result.CONFLICT),
        (412, Result.CONFLICT),
        (403, Result.REFUSED),
        (429, Result.REFUSED),
        (500, Result.FAILED),
        (503, Result.FAILED),
        (None, Result.FAILED),
    ],
)
def test_a_status_has_a_result(status: int | None, result: Result) -> None:
    assert result_of(status) is result


def test_counts_are_added_to_those_of_the_process_before() -> None:
    shared = (c_int64 * CELLS)()
    expected = {}
    for process in (1, 2):
        meter = RequestMeter()
        meter.count(Operation.PUT, Result.OK)
        meter.move_to(shared)
        meter.count(Operation.LIST, Result.FAILED)
        expected = {(Operation.PUT, Result.OK): process, (Operation.LIST, Result.FAILED): process}
        assert meter.counts() == counts_in(shared) == expected


def test_each_request_that_ends_is_told_of_also_one_that_fails() -> None:
    meter, ended = RequestMeter(), []
    meter.watch(lambda: ended.append(sum(meter.counts().values())))
    meter.count(Operation.PUT, Result.OK)
    meter.count(Operation.GET, Result.FAILED)
    assert ended == [1, 2], "after it was counted"
