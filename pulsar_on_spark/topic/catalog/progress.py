"""Progress callback of long-running operations."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Callback that a long-running operation calls from its own thread from time to time."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report that `done` of `total` units of `step` are finished; a total of 0 means an empty step."""


def silent(step: str, done: int, total: int) -> None:
    """Ignore the progress; the default `Progress`."""
