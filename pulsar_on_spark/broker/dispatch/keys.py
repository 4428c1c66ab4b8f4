"""Division of keys among Key_Shared consumers, by slots of the sticky key's hash.

**AUTO_SPLIT.** The slots are the 64 key slots by which Spark cuts its entries (`topic.entries.cutting`). An entry that
Spark wrote has messages of several keys of one slot, so the consumer of an entry is determined by the slot alone. Slots
are divided as among Spark's consumers (`topic.managed_ledger.subscription.slots`): the numbers of slots differ by at
most one, and as few slots as possible move when a consumer subscribes or leaves. If there are more than 64 consumers,
the others get no entries. Pulsar instead puts 100 points of each consumer on a ring of 65,535 hashes.

**STICKY.** Each consumer sends its ranges of hashes from 0 to 65,535. An entry of Spark goes to the consumer of its
first key, because its keys may lie in the ranges of several consumers (docs/adr/0012).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from itertools import count
from typing import Final

import mmh3

from pulsar_on_spark.broker.dispatch.values import ConsumerId, ConsumerInfo, HashRange, KeySharedPolicy
from pulsar_on_spark.model.errors import ConsumerAssignError
from pulsar_on_spark.topic.entries.cutting import SLOTS
from pulsar_on_spark.topic.managed_ledger.subscription.slots import targets

HASHES: Final = 65_536
"""Number of hash values in mode STICKY: hashes are from 0 to 65,535."""
_POSITIVE = 0x7FFFFFFF


def sticky_key_hash(key: bytes) -> int:
    """Return Pulsar's `Murmur3_32Hash` of a sticky key, 31 bits, as `model.hashing` does for Arrow columns."""
    return mmh3.hash(key, 0, signed=False) & _POSITIVE


class KeySplit(ABC):
    """A division of keys among consumers. A slot is a number above 0 of keys that go to the same consumer."""

    @abstractmethod
    def slot(self, key: bytes) -> int:
        """Return the number of the slot that contains a sticky key."""

    @abstractmethod
    def consumer(self, slot: int) -> ConsumerId | None:
        """Return the id of the consumer of a slot; None if no consumer has the slot."""

    @abstractmethod
    def add(self, info: ConsumerInfo) -> None:
        """Add a consumer.

        Raises:
            ConsumerAssignError: the consumer's hash ranges are missing, invalid or overlap another consumer's (STICKY).
        """

    @abstractmethod
    def remove(self, consumer: ConsumerId) -> None:
        """Remove a consumer; its keys go to other consumers (AUTO_SPLIT) or to none (STICKY)."""


def key_split(policy: KeySharedPolicy) -> KeySplit:
    """Create the division of keys for a policy's mode, without consumers."""
    return AutoSplit() if policy.mode == "AUTO_SPLIT" else StickyRanges()


class AutoSplit(KeySplit):
    """The division of mode AUTO_SPLIT: each consumer has an equal share of the key slots."""

    def __init__(self) -> None:
        self._labels: dict[ConsumerId, str] = {}
        self._owners: dict[int, str] = {}
        self._consumers: dict[int, ConsumerId] | None = {}
        """The consumer of each slot; None after consumers have changed, until the next call of `consumer`."""

    def slot(self, key: bytes) -> int:
        """Return the number of the slot that contains a sticky key, from 1 to 64."""
        return sticky_key_hash(key) % SLOTS + 1

    def consumer(self, slot: int) -> ConsumerId | None:
        """Return the id of the consumer of a slot; None if there are no consumers."""
        if self._consumers is None:
            self._owners = targets(self._labels.values(), self._owners)
            consumers = {label: consumer for consumer, label in self._labels.items()}
            self._consumers = {slot + 1: consumers[label] for slot, label in self._owners.items()}
        return self._consumers.get(slot)

    def add(self, info: ConsumerInfo) -> None:
        """Add a consumer; consumers with the same name get distinct labels, which are reused after they leave."""
        taken = set(self._labels.values())
        labels = (f"{info.name}/{number}" for number in count())
        self._labels[info.id] = next(label for label in labels if label not in taken)
        self._consumers = None

    def remove(self, consumer: ConsumerId) -> None:
        """Remove a consumer; its slots go to the others."""
        self._labels.pop(consumer, None)
        self._consumers = None


class StickyRanges(KeySplit):
    """The division of mode STICKY: each consumer has the hash ranges that it sent."""

    def __init__(self) -> None:
        self._ranges: list[tuple[HashRange, ConsumerId]] = []

    def slot(self, key: bytes) -> int:
        """Return the hash of a sticky key, from 1 to 65,535; hash 0 counts as 1, as in Pulsar."""
        return sticky_key_hash(key) % HASHES or 1

    def consumer(self, slot: int) -> ConsumerId | None:
        """Return the id of the consumer whose ranges contain a hash; None if no range contains it."""
        at = bisect_right(self._ranges, slot, key=lambda range_: range_[0][0]) - 1
        if at < 0:
            return None
        (_, last), consumer = self._ranges[at]
        return consumer if slot <= last else None

    def add(self, info: ConsumerInfo) -> None:
        """Check the hash ranges of a consumer and add the consumer (errors as `KeySplit.add`)."""
        if not info.ranges:
            raise ConsumerAssignError(
                f"Consumer {info.name!r} sent no hash ranges: give at least one for the key-shared mode STICKY."
            )
        taken = [range_ for range_, _ in self._ranges]
        for first, last in info.ranges:
            if not 0 <= first <= last < HASHES:
                raise ConsumerAssignError(
                    f"Consumer {info.name!r} sent hash range {first} to {last}: give ranges within 0 to {HASHES - 1}."
                )
            at = bisect_right(taken, (first, last))
            for other_first, other_last in taken[max(at - 1, 0) : at + 1]:  # they are disjoint, and sorted
                if first <= other_last and other_first <= last:
                    raise ConsumerAssignError(
                        f"Hash range {first} to {last} of consumer {info.name!r} overlaps {other_first} to "
                        f"{other_last}, which is taken: give ranges that are free."
                    )
            taken.insert(at, (first, last))
        for range_ in info.ranges:
            insort(self._ranges, (range_, info.id))

    def remove(self, consumer: ConsumerId) -> None:
        """Remove a consumer and its hash ranges; their keys have no consumer."""
        self._ranges = [range_ for range_ in self._ranges if range_[1] != consumer]
