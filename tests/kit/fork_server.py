"""The fork server of a test's process, which keeps environment and standard error of the test that started it."""

from __future__ import annotations

from multiprocessing import forkserver
from typing import Any, cast


def stop_fork_server() -> None:
    """End the server, if there is one, so that the next child starts another one. It must have no living children."""
    cast(Any, forkserver)._forkserver._stop()  # as CPython's own tests do
