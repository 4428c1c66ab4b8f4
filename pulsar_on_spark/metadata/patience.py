"""Bounded retries of reads of a table whose log is cleaned up or replaced during the read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from pulsar_on_spark.metadata.log.chain import OvertakenError
from pulsar_on_spark.model.errors import MetadataError

READ_ATTEMPTS = 10
"""Maximum number of attempts to read, with growing pauses between them of about three seconds in all."""

_T = TypeVar("_T")


def retried(lock: AbstractContextManager[object], table: str, read: Callable[[], _T]) -> _T:
    """Return the result of `read`, which is called under a lock and repeated when it raises `OvertakenError`.

    The lock is released between attempts.

    Args:
        lock: The lock.
        table: The table's path, for the error.
        read: Reads the table.

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
    """Raise an error if no further attempt is allowed.

    Args:
        attempt: The number of attempts, all of which have failed.
        table: The table's path, for the error.
        error: The reason of the last failure.

    Raises:
        MetadataError: `attempt` has reached `READ_ATTEMPTS`.
    """
    if attempt >= READ_ATTEMPTS:
        raise MetadataError(
            f"The table {table} could not be read in {attempt} attempts ({error}): try again; if that fails, check "
            "the disk, the permissions, and which other processes use the root."
        ) from error
