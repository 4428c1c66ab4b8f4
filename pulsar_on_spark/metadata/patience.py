"""Bounded retries of a store while a table changes under its reader."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from pulsar_on_spark.metadata.log.chain import OvertakenError
from pulsar_on_spark.model.errors import MetadataError

READ_ATTEMPTS = 10
"""Limit of attempts to read, with growing pauses between them: about three seconds in all."""

_T = TypeVar("_T")


def retried(lock: AbstractContextManager[object], table: str, read: Callable[[], _T]) -> _T:
    """Read under a lock, which is released between attempts.

    Raises:
        MetadataError: the last attempt failed.
    """
    attempt = 0
    while True:
        try:
            with lock:
                return read()
        except OvertakenError as error:
            attempt += 1
            give_up_after(attempt, table, error)
        time.sleep(random.uniform(0, 0.005 * 2**attempt))


def give_up_after(attempt: int, table: str, error: OvertakenError) -> None:
    """Raise an error if `attempt`, which has failed, was the last one.

    Raises:
        MetadataError: it was the last one; the error names the reason.
    """
    if attempt >= READ_ATTEMPTS:
        raise MetadataError(
            f"The table {table} could not be read in {attempt} attempts ({error}): try again; if that fails, check "
            "the disk, the permissions, and which other processes use the root."
        ) from error
