"""How long things have been as they are, by looks at them now and then. Pure, for any clock in seconds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Unchanged(Generic[K, S]):
    """Remembers of each thing its state at the last look, and since when it has been in that state."""

    def __init__(self) -> None:
        self._since: dict[K, tuple[S, float]] = {}

    def look(self, now_s: float, states: Mapping[K, S]) -> dict[K, float]:
        """Take in how things are now; of one that is not among them the time begins anew when it is again.

        Args:
            now_s: The time; it never goes back.
            states: The state of each thing.

        Returns:
            For how many seconds each has been as it is, as far as looks tell: 0 for what is new or has changed.
        """
        before, self._since = self._since, {}
        for key, state in states.items():
            known = before.get(key)
            self._since[key] = known if known is not None and known[0] == state else (state, now_s)
        return {key: now_s - since_s for key, (_, since_s) in self._since.items()}
