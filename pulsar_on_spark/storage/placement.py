"""On which storage paths the copies of a file go: more to where more room is, never two under one label if avoidable.

Weighted rendezvous hashing (Thaler and Ravishankar; weights after Mosharaf and Schindelhauer): each path draws a score
from the file's id and divides by its weight, the best scores win. So the choice is the same for everybody who knows the
paths, needs no shared state, and a path more or less moves only what it takes or leaves.
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
    """What a choice looks at."""

    @property
    def path_id(self) -> PathId:
        """The storage path."""

    @property
    def label(self) -> str:
        """Its rack; paths without one are apart from all others."""

    @property
    def weight(self) -> int:
        """Its share of new files: free bytes, or 1 for each where that is not known."""


P = TypeVar("P", bound=Place)


def preferred(places: Iterable[P], key: str) -> list[P]:
    """The places in the order in which the file `key` tries them: any first few of them are apart as far as possible.

    It does not matter in which order they are given.
    """
    left = sorted(places, key=lambda place: (_score(place, key), place.path_id))
    ordered: list[P] = []
    while left:
        chosen = next_apart(left, [place.label for place in ordered])
        left.remove(chosen)
        ordered.append(chosen)
    return ordered


def next_apart(places: Sequence[P], labels: Collection[str]) -> P:
    """The first place whose label is least among those in use. There must be one place at least."""
    used = Counter(label for label in labels if label)
    return min(places, key=lambda place: used[place.label])


def _score(place: Place, key: str) -> float:
    digest = hashlib.blake2b(f"{key} {place.path_id}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / _UNIT
    return -math.log(uniform) / max(place.weight, 1)
