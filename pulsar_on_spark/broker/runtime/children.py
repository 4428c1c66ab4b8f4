"""Child processes of background work, which end when the task that waits for them is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from pulsar_on_spark.storage.daemon_calls import start_call

_STOP_TIMEOUT_S: Final = 5.0
_MAX_ERROR_BYTES: Final = 4_096
"""Number of bytes that are kept from the end of a failed process's error output."""


async def run_child(command: Sequence[str], *, error_bytes: int = 0) -> tuple[int, bytes]:
    """Run a program to its end. If the caller is cancelled, terminate the program, and kill it if it does not end soon.

    `subprocess` starts it by vfork. uvloop would fork, which stops the event loop while the page tables are copied: for
    27 ms in a process of 600 MB.

    Args:
        command: The program and its arguments.
        error_bytes: Maximum number of bytes to return from the end of its standard error; 0 to return none and let the
            program share this process's standard error.

    Returns:
        The exit code, and the last bytes of standard error.

    Raises:
        OSError: the program cannot be started.
    """
    process = subprocess.Popen(command, stderr=subprocess.PIPE if error_bytes else None)
    ended = asyncio.wrap_future(start_call(partial(_follow, process, error_bytes), "pulsarpy-child"))
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(ended), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
        raise


def _follow(process: subprocess.Popen[bytes], error_bytes: int) -> tuple[int, bytes]:
    """Wait for the end of a process, emptying its standard error; runs in a thread."""
    errors = b""
    if process.stderr is not None:
        with process.stderr:
            while more := process.stderr.read(error_bytes):
                errors = (errors + more)[-error_bytes:]
    return process.wait(), errors


async def run_module(module: str, *arguments: str) -> str | None:
    """Run a module as a child process until it ends (errors as `run_child`).

    Args:
        module: The module's name.
        arguments: The process's arguments.

    Returns:
        The last line of a failed process's standard error, as the reason of the failure; None after a success.
    """
    code, errors = await run_child([sys.executable, "-m", module, *arguments], error_bytes=_MAX_ERROR_BYTES)
    lines = errors.decode(errors="replace").strip().splitlines()
    return None if code == 0 else lines[-1] if lines else f"The process ended with code {code}."
