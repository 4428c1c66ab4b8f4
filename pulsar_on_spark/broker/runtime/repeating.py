"""Periodic work of a broker: failures are logged, and the work is retried after the next interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pulsar_on_spark.model.errors import PulsarpyError

log = logging.getLogger(__name__)


async def every(interval_s: float, work: Callable[[], Awaitable[None]], complaint: str) -> None:
    """Run some work after each interval until the task is cancelled.

    Args:
        interval_s: Seconds from the end of one run to the next.
        work: The function that does the work once.
        complaint: The log message of a failure, a sentence without a full stop: the reason is appended.
    """
    while True:
        await asyncio.sleep(interval_s)
        await attempt(work, complaint)


async def attempt(work: Callable[[], Awaitable[None]], complaint: str) -> None:
    """Run some periodic work once, logging its failure (arguments as `every`)."""
    try:
        await work()
    except (PulsarpyError, OSError) as error:
        log.warning("%s: %s", complaint, error)
    except Exception:
        log.exception("%s because of a bug in the broker; it is retried.", complaint)
