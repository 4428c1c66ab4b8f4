"""Time for which states have been unchanged, by periodic scans. Pure, for any clock in seconds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Unchanged(Generic[K, S]):
    """The state of each key at the last scan, and the time since which it has had that state."""

    def __init__(self) -> None:
        self._since: dict[K, tuple[S, float]] = {}

    def record_scan(self, now_s: float, states: Mapping[K, S]) -> dict[K, float]:
        """Record a scan. A key that is missing from `states` starts over when it reappears.

        Args:
            now_s: The time of the scan, in seconds on a clock that never goes back.
            states: The current state of each key.

        Returns:
            Seconds for which each key has had its state at all scans: 0 for keys that are new or have changed.
        """
        before, self._since = self._since, {}
        for key, state in states.items():
            known = before.get(key)
            self._since[key] = known if known is not None and known[0] == state else (state, now_s)
        return {key: now_s - since_s for key, (_, since_s) in self._since.items()}
