"""What a broker does again and again as long as it runs: whatever fails is logged, and is done the next time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pulsar_on_spark.model.errors import PulsarpyError

log = logging.getLogger(__name__)


async def every(interval_s: float, work: Callable[[], Awaitable[None]], complaint: str) -> None:
    """Do something so often, first after one interval, until the task is cancelled.

    Args:
        interval_s: Seconds from the end of one time to the next.
        work: What is done.
        complaint: What is logged if it fails, a sentence without its end: the reason follows.
    """
    while True:
        await asyncio.sleep(interval_s)
        await attempt(work, complaint)


async def attempt(work: Callable[[], Awaitable[None]], complaint: str) -> None:
    """Do something once that is done again anyway (arguments as `every`)."""
    try:
        await work()
    except (PulsarpyError, OSError) as error:
        log.warning("%s: %s", complaint, error)
    except Exception:
        log.exception("%s, by a fault of the broker's own; it is tried again.", complaint)
