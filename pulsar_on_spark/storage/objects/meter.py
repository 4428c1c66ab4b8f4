"""Counts of the requests to object stores by operation and result, which show costs and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableSequence
from ctypes import Array, c_int64
from enum import StrEnum
from itertools import product
from typing import Final, TypeAlias


class Operation(StrEnum):
    """Kind of a request, by which stores charge; an upload in parts counts as one request."""

    PUT = "put"
    UPLOAD = "upload"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


class Result(StrEnum):
    """Result of a request."""

    OK = "ok"
    ABSENT = "absent"
    """HTTP status 404."""
    CONFLICT = "conflict"
    """HTTP status 409 or 412: a condition of the request does not hold."""
    REFUSED = "refused"
    """Another HTTP status of 400 to 499, such as 403."""
    FAILED = "failed"
    """An HTTP status of 500 or more, or no answer."""


_RESULTS: Final[Mapping[int, Result]] = {404: Result.ABSENT, 409: Result.CONFLICT, 412: Result.CONFLICT}


Cells: TypeAlias = MutableSequence[int] | Array[c_int64]
Counts: TypeAlias = Mapping[tuple[Operation, Result], int]
"""Numbers of requests by operation and result; zeros are left out."""
CELLS: Final = len(Operation) * len(Result)
"""Number of a meter's counts."""
_KINDS: Final = tuple(product(Operation, Result))


class RequestMeter:
    """Counter of the requests of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: Cells = [0] * CELLS
        self._on_request: Callable[[], None] = lambda: None

    def count(self, operation: Operation, result: Result) -> None:
        """Count a request, and call the function given to `watch`."""
        with self._lock:
            self._cells[_KINDS.index((operation, result))] += 1
        self._on_request()

    def watch(self, on_request: Callable[[], None]) -> None:
        """Call a function at the end of each later request, in the request's thread."""
        self._on_request = on_request

    def move_to(self, cells: Cells) -> None:
        """Add the counts to `cells`, which is memory that another process reads, and count there from now on."""
        with self._lock:
            for number, count in enumerate(self._cells):
                cells[number] += count
            self._cells = cells

    def counts(self) -> Counts:
        """Return the counts that are not 0 (see `counts_in`)."""
        return counts_in(self._cells)


def counts_in(cells: Cells) -> Counts:
    """Return the counts in a meter's cells by operation and result, without zeros."""
    return {kind: cells[number] for number, kind in enumerate(_KINDS) if cells[number]}


def result_of(status: int | None) -> Result:
    """Return the result for the HTTP status of a failed request; `status` is None if there was no answer."""
    if status is None or not 400 <= status < 500:
        return Result.FAILED
    return _RESULTS.get(status, Result.REFUSED)


REQUESTS: Final = RequestMeter()
"""The requests of this process."""
