"""Choice of the storage paths for a file's copies: by free space, and under different labels if possible.

Weighted rendezvous hashing (Thaler and Ravishankar; weights after Mosharaf and Schindelhauer): each path's score is a
hash of file id and path, divided by the path's weight, and the best scores win. All processes that know the same paths
make the same choice without shared state. Adding or removing a path moves only the copies on that path.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from pulsar_on_spark.model.ids import PathId

_UNIT = 2.0**64


class Place(Protocol):
    """A storage path that can be chosen."""

    @property
    def path_id(self) -> PathId:
        """The path's id."""

    @property
    def label(self) -> str:
        """The label of the path's rack; a path without a label counts as a separate rack."""

    @property
    def weight(self) -> int:
        """The path's share of new files: its free bytes, or 1 for every path if these are unknown."""


P = TypeVar("P", bound=Place)


def preferred(places: Iterable[P], key: str) -> list[P]:
    """Return the storage paths by preference for the file `key`. For any N, the first N share the fewest labels.

    The order of `places` has no effect.
    """
    remaining = sorted(places, key=lambda place: (_score(place, key), place.path_id))
    ordered: list[P] = []
    while remaining:
        chosen = next_apart(remaining, [place.label for place in ordered])
        remaining.remove(chosen)
        ordered.append(chosen)
    return ordered


def next_apart(places: Sequence[P], labels: Collection[str]) -> P:
    """Return the first path whose label occurs least in `labels`; `places` must not be empty."""
    used = Counter(label for label in labels if label)
    return min(places, key=lambda place: used[place.label])


def _score(place: Place, key: str) -> float:
    digest = hashlib.blake2b(f"{key} {place.path_id}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / _UNIT
    return -math.log(uniform) / max(place.weight, 1)
