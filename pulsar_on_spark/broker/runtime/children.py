"""Child processes of background work, which end when the task that waits for them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_STOP_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def ended_if_cancelled(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Terminate the process if the block is cancelled, and kill it if it does not end in time."""
    try:
        yield
    except asyncio.CancelledError:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
        raise
