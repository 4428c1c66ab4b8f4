"""Processes of a broker's upkeep, which end when whoever waits for them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_STOP_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def ended_if_cancelled(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Wait for the process in here: a cancelled wait terminates it, and kills it if it does not heed that in time."""
    try:
        yield
    except asyncio.CancelledError:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
        raise
