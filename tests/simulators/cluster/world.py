"""The world of a run: the clock, the metadata, the locks, and all brokers that were ever started."""

from __future__ import annotations

import random

from pulsar_on_spark.broker.runtime.journals import LEASE_S
from tests.simulators.cluster.broker import SimulatedBroker
from tests.simulators.cluster.metadata import Metadata
from tests.simulators.cluster.oracle import Oracle
from tests.simulators.cluster.scheduler import Scheduler


class World:
    """Everything that the brokers of a run share.

    Args:
        seed: Decides everything.

    Attributes:
        has_locks: True if the brokers of a host prove each other's death by locks.
        locks: The last holder of each lock, by host and broker.
        brokers_by_name: All brokers, also dead ones.
        is_chaos: True as long as there may be failures.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scheduler = Scheduler(self.chance)
        self.metadata = Metadata(self.scheduler)
        self.oracle = Oracle(self)
        self.metadata.on_commit = self.oracle.on_commit
        self.locks: dict[tuple[str, str], SimulatedBroker] = {}
        self.brokers_by_name: dict[str, SimulatedBroker] = {}
        self.is_chaos = True
        self._deaf: list[tuple[float, float]] = []

    def note_deaf(self, begin_s: float, end_s: float) -> None:
        """Note a time in which no broker could hear another: a pause of the whole machine, or an outage."""
        self._deaf.append((begin_s, end_s))

    def note_healed(self, healed_s: float) -> None:
        """Note that all brokers can hear each other from a time on, before the ends that were noted."""
        self._deaf = [(begin_s, min(end_s, healed_s)) for begin_s, end_s in self._deaf]

    def heard_at(self, time_s: float) -> float:
        """Return the time until then in which brokers could hear each other, in seconds.

        A time without hearing that is shorter than half a lease counts as heard, because the brokers that renewed their
        leases before and after it do not notice it.
        """
        deaf: list[tuple[float, float]] = []
        for begin_s, end_s in sorted(self._deaf):
            if deaf and begin_s <= deaf[-1][1]:
                deaf[-1] = (deaf[-1][0], max(deaf[-1][1], end_s))
            else:
                deaf.append((begin_s, end_s))
        lengths_s = [min(end_s, time_s) - begin_s for begin_s, end_s in deaf]
        return time_s - sum(length_s for length_s in lengths_s if length_s >= LEASE_S / 2)
