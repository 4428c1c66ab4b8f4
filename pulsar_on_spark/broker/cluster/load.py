"""The load of brokers, and the bundles that a broker gives up because of its load. No IO; the caller passes the time.

Each broker reports its load and decides for itself. No leader is needed, because only the owner of a bundle gives it
up. The rules are those of Pulsar's AvgShedder (PIP-364): the busiest broker gives bundles to an idle one when their
scores have differed for some rounds, and gives away at most half of the difference at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Final, TypeVar

BundleT = TypeVar("BundleT")

FULL: Final = 100.0
"""The score of a fully loaded broker."""
DELAYED_S: Final = 0.1
"""The mean delay of the event loop at which a broker counts as fully loaded, in seconds."""
MESSAGE_BYTES: Final = 1024
"""The number of bytes that count as much work as one message."""
EQUAL: Final = 5.0
"""Width of a score bucket, in points: the placement of a bundle treats scores in one bucket as equal."""
STRONG: Final = 40.0
WEAK: Final = 15.0
"""Differences of scores, in points: a broker gives up bundles if its score exceeds another one's by more than `STRONG`
for `STRONG_ROUNDS`, or by more than `WEAK` for `WEAK_ROUNDS`."""
STRONG_ROUNDS: Final = 2
WEAK_ROUNDS: Final = 8
MOST_GIVEN: Final = 3
"""Maximum number of bundles that a broker gives up in one round."""
SETTLED_S: Final = 600.0
"""Minimum time between two moves of a bundle, in seconds."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker.

    Attributes:
        incarnation: The id of the broker's incarnation.
        score: The load of the broker, in points from 0 to 100.
        bundles: The points of each owned bundle, by `str(bundle)`. The sum of these points is the score, or 0 if the
            broker has no traffic.
    """

    incarnation: str
    score: float
    bundles: Mapping[str, float] = field(default_factory=dict)

    def encode(self, counter: int) -> bytes:
        """Return the load as JSON, with a counter that makes each report differ from the broker's earlier reports."""
        return json.dumps({"v": 1, "counter": counter, **asdict(self)}).encode()

    @classmethod
    def parse(cls, content: bytes) -> BrokerLoad | None:
        """Return the load from the JSON that `encode` wrote; None if the content is something else."""
        try:
            fields = json.loads(content)
            bundles = {str(bundle): float(points) for bundle, points in fields["bundles"].items()}
            return cls(str(fields["incarnation"]), float(fields["score"]), bundles)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def score(cpu_percent: float, loop_delay_s: float) -> float:
    """Return the load of a broker, in points from 0 to 100.

    Args:
        cpu_percent: The broker's CPU time in percent of one core, because one event loop serves all of its clients.
        loop_delay_s: The mean delay of the broker's event loop, in seconds.
    """
    return min(FULL, max(cpu_percent, FULL * loop_delay_s / DELAYED_S))


def work(messages: float, size_bytes: float) -> float:
    """Return the work of a bundle's traffic, in messages per second; `MESSAGE_BYTES` count as one message.

    Args:
        messages: Messages per second.
        size_bytes: Bytes per second.
    """
    return messages + size_bytes / MESSAGE_BYTES


def shares(points: float, works: Mapping[str, float]) -> dict[str, float]:
    """Return each bundle's part of the broker's points, in proportion to its work; 0 for each if the total work is 0.

    Args:
        points: The points of the broker.
        works: The work of each bundle (see `work`), by `str(bundle)`.
    """
    total = sum(works.values())
    return {bundle: points * each / total if total else 0.0 for bundle, each in works.items()}


def place_bundles(
    bundles: Sequence[BundleT],
    incarnations: Collection[str],
    counts: Counter[str],
    loads: Mapping[str, BrokerLoad],
    sample: Callable[[Sequence[str], int], Sequence[str]],
) -> dict[BundleT, str]:
    """Return the incarnation that gets each bundle: of two random brokers, the one with the lower load.

    Brokers of about equal load are compared by their number of bundles. A bundle that a broker got after its last
    report counts as a bundle of mean load.

    Args:
        bundles: The bundles without an owner.
        incarnations: The ids of the incarnations of brokers that take bundles; at least one.
        counts: The number of bundles of each incarnation.
        loads: The last reported loads, by incarnation; a broker without a report has load 0 and bundles of mean load.
        sample: Draws a number of the incarnations at random, as `random.sample`.
    """
    counts = counts.copy()
    points = [each for load in loads.values() for each in load.bundles.values()]
    mean = fmean(points) if points else 0.0

    def busyness(incarnation: str) -> tuple[float, int]:
        load = loads.get(incarnation) or BrokerLoad(incarnation, 0.0)
        unreported = max(0, counts[incarnation] - len(load.bundles))
        return (load.score + mean * unreported) // EQUAL, counts[incarnation]

    placed: dict[BundleT, str] = {}
    for bundle in bundles:
        candidates = sample(sorted(incarnations), min(2, len(incarnations)))
        placed[bundle] = min(candidates, key=busyness)
        counts[placed[bundle]] += 1
    return placed


@dataclass(frozen=True, slots=True)
class Move:
    """A move of bundles from this broker to another one.

    Attributes:
        to: The id of the incarnation that gets the bundles.
        bundles: The bundles, each as `str(bundle)`.
    """

    to: str
    bundles: tuple[str, ...]


class Shedder:
    """The decision, made once a round, about the bundles that a broker gives to a less busy one.

    Args:
        incarnation: The id of this broker's incarnation.
    """

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._strong = self._weak = 0
        self._since_s: dict[str, tuple[int, float]] = {}
        """The epoch of each owned bundle, and the time at which this broker first saw the bundle with that epoch."""

    def decide(
        self,
        now_s: float,
        loads: Mapping[str, BrokerLoad],
        epochs: Mapping[str, int],
        counts: Counter[str],
        may_take: Callable[[str, str], bool],
    ) -> Move | None:
        """Return the bundles to give up in this round; None if all stay.

        Args:
            now_s: The current time in seconds, on a monotonic clock.
            loads: The loads of all living brokers that take bundles, and of this one, by incarnation.
            epochs: The epoch of each bundle that this broker owns; a bundle's epoch grows when the bundle moves.
            counts: The number of bundles that each incarnation owns. A load with another number of bundles was
                reported before a move and is not used.
            may_take: Returns True if a bundle, the first argument, may go to an incarnation, the second argument.
        """
        self._note(now_s, epochs)
        own = loads.get(self._incarnation)
        by_score = sorted(loads.values(), key=lambda load: (load.score, load.incarnation))
        if own is None or not self._lasts(own, by_score) or len(own.bundles) != counts[own.incarnation]:
            return None
        for to in by_score:
            if own.score - to.score <= WEAK:
                return None
            if len(to.bundles) != counts[to.incarnation]:
                continue
            movable = {
                bundle: points
                for bundle, points in own.bundles.items()
                if self._is_settled(bundle, now_s) and may_take(bundle, to.incarnation)
            }
            chosen = _largest_that_fit(movable, (own.score - to.score) / 2, len(epochs) - 1)
            if chosen:
                self._strong = self._weak = 0
                return Move(to.incarnation, chosen)
        return None

    def _note(self, now_s: float, epochs: Mapping[str, int]) -> None:
        known = self._since_s
        self._since_s = {
            bundle: known[bundle] if bundle in known and known[bundle][0] == epoch else (epoch, now_s)
            for bundle, epoch in epochs.items()
        }

    def _is_settled(self, bundle: str, now_s: float) -> bool:
        since = self._since_s.get(bundle)
        return since is not None and now_s - since[1] >= SETTLED_S

    def _lasts(self, own: BrokerLoad, by_score: Sequence[BrokerLoad]) -> bool:
        """Return True if this broker is the busiest, and has been busier than another one for long enough."""
        difference = own.score - by_score[0].score if by_score[-1] is own else 0.0
        self._strong = self._strong + 1 if difference > STRONG else 0
        self._weak = self._weak + 1 if difference > WEAK else 0
        return self._strong >= STRONG_ROUNDS or self._weak >= WEAK_ROUNDS


def _largest_that_fit(movable: Mapping[str, float], budget: float, most: int) -> tuple[str, ...]:
    """Return at most `most` bundles with traffic, the largest first, whose total of points is within the budget."""
    chosen: list[str] = []
    for bundle, points in sorted(movable.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) < min(most, MOST_GIVEN) and 0 < points <= budget:
            chosen.append(bundle)
            budget -= points
    return tuple(chosen)
