"""Errors of this package as users of Spark see them: one sentence, without the Python stack of Spark's worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar, cast

from pulsar_on_spark.datasource.worker_daemon import end_quietly
from pulsar_on_spark.datasource.worker_process import is_spark_worker
from pulsar_on_spark.model.errors import PulsarpyError

P = ParamSpec("P")
T = TypeVar("T")

_HIDE = "SPARK_HIDE_TRACEBACK"

end_quietly()  # here, because every process that plans, commits or runs a task loads this module


def one_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method so that errors of this package leave a Spark worker without a stack; other errors keep theirs.

    If the method returns an iterator, this also holds for errors during the iteration.
    """

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = method(*args, **kwargs)
        except PulsarpyError:
            _hide_stack()
            raise
        return cast(T, _each(result)) if isinstance(result, Iterator) else result

    return guarded


def _each(results: Iterator[T]) -> Iterator[T]:
    try:
        yield from results
    except PulsarpyError:
        _hide_stack()
        raise


def _hide_stack() -> None:
    if is_spark_worker():
        os.environ[_HIDE] = "1"
