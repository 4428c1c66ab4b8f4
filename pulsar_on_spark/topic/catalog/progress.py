"""How long work says how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then by long work, from the thread that does it."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """`done` of `total` units of `step` are finished; a total of 0 means that nothing was to do."""


def silent(step: str, done: int, total: int) -> None:
    """For callers that do not want to know."""
