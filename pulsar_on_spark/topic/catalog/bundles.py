"""Bundles: the hash ranges that divide a namespace's topics among brokers, and the owner of each.

A bundle is owned by a broker's incarnation until the incarnation is CLOSED, so that the end of a broker frees its
bundles without another commit. Ownership tells clients where to connect. It does not protect data; the chain of a
topic, the record of a subscription and the journal do.

    assign   a bundle without an owner gets one             by any broker, for itself or for another
    give     a bundle loses its owner, or gets another one  by its owner, once its topics are closed
    split    a bundle becomes several of the same owner     by any broker

Each of these changes is one compare-and-set of the namespace's record. All functions are pure.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from pulsar_on_spark.metadata import features, keys
from pulsar_on_spark.metadata.records import BundleOwner, BundlesRecord, IncarnationRecord, NamespaceRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import InvalidArgumentError, NamespaceNotFoundError
from pulsar_on_spark.model.names import TopicName

MAX_HASH: Final = 2**32 - 1
MAX_BUNDLES: Final = 1024
"""Maximum number of bundles of a namespace: each change of an owner writes all of them."""


def topic_hash(name: TopicName) -> int:
    """Return the hash that determines a topic's bundle: the CRC-32 of its full name, as in Pulsar."""
    return zlib.crc32(name.full.encode())


@dataclass(frozen=True, slots=True)
class Bundle:
    """A hash range of a namespace's topics: `lower` inclusive, `upper` exclusive except in the last bundle."""

    namespace: str
    lower: int
    upper: int

    @property
    def hash_range(self) -> str:
        """The range as Pulsar writes it: `0x00000000_0x40000000`."""
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    def __str__(self) -> str:
        """`tenant/namespace/0x00000000_0x40000000`."""
        return f"{self.namespace}/{self.hash_range}"

    def covers(self, other: Bundle) -> bool:
        """Return True if another bundle is a part of this one, or the same."""
        return self.namespace == other.namespace and self.lower <= other.lower and other.upper <= self.upper

    def __contains__(self, name: TopicName) -> bool:
        """True if a topic is in the bundle."""
        position = topic_hash(name)
        is_in_range = self.lower <= position < self.upper or position == self.upper == MAX_HASH
        return is_in_range and self.namespace == name.namespace


@dataclass(frozen=True, slots=True)
class NamespaceBundles:
    """All bundles of a namespace, by range; iterating yields them.

    Attributes:
        namespace: `tenant/namespace`.
        boundaries: The ends of the ranges (see `BundlesRecord`).
        owners: The owner of each bundle, in the order of the ranges.
    """

    namespace: str
    boundaries: tuple[int, ...]
    owners: tuple[BundleOwner, ...]

    def __iter__(self) -> Iterator[Bundle]:
        for lower, upper in pairwise(self.boundaries):
            yield Bundle(self.namespace, lower, upper)

    def bundle_of(self, name: TopicName) -> Bundle:
        """Return the bundle of a topic."""
        number = min(bisect_right(self.boundaries, topic_hash(name)), len(self.owners)) - 1
        return Bundle(self.namespace, self.boundaries[number], self.boundaries[number + 1])

    def require_bundle(self, hash_range: str) -> Bundle:
        """Return the bundle of a range such as `0x00000000_0x40000000`.

        Raises:
            InvalidArgumentError: there is no such bundle.
        """
        for bundle in self:
            if bundle.hash_range == hash_range.lower():
                return bundle
        raise InvalidArgumentError(
            f"Namespace {self.namespace} has no bundle {hash_range}: give one of {', '.join(_some(self))}."
        )

    def owner_of(self, bundle: Bundle) -> BundleOwner:
        """Return the recorded owner of a bundle; an empty `BundleOwner` if the bundle was split."""
        number = self._number(bundle)
        return BundleOwner() if number is None else self.owners[number]

    def _number(self, bundle: Bundle) -> int | None:
        """Return the index of a bundle in `owners`; None if it was split."""
        number = bisect_right(self.boundaries, bundle.lower) - 1
        is_there = self.boundaries[number : number + 2] == (bundle.lower, bundle.upper)
        return number if is_there else None

    def with_owner(self, bundle: Bundle, incarnation: str | None, now: datetime) -> NamespaceBundles:
        """Return these bundles after `bundle` has got another owner (None for no owner) and its next epoch."""
        number = self._number(bundle)
        assert number is not None, "the caller has looked"
        owner = BundleOwner(incarnation=incarnation, epoch=self.owners[number].epoch + 1, since=now)
        return replace(self, owners=(*self.owners[:number], owner, *self.owners[number + 1 :]))

    def record(self) -> BundlesRecord:
        """Return the metadata record of these bundles."""
        return BundlesRecord(namespace=self.namespace, boundaries=self.boundaries, owners=self.owners)


def equal_boundaries(count: int) -> tuple[int, ...]:
    """Return the boundaries of `count` bundles of equal size, rounded as Pulsar does.

    Raises:
        InvalidArgumentError: `count` is not from 1 to `MAX_BUNDLES`.
    """
    if not 1 <= count <= MAX_BUNDLES:
        raise InvalidArgumentError(f"A namespace has 1 to {MAX_BUNDLES} bundles, not {count}: choose another number.")
    size = MAX_HASH // count
    return (*(number * size for number in range(count)), MAX_HASH)


def check_boundaries(boundaries: Sequence[int]) -> tuple[int, ...]:
    """Check boundaries that an operator gives, and return them.

    Raises:
        InvalidArgumentError: the boundaries do not ascend from 0 to 2**32 - 1, or make more than `MAX_BUNDLES` bundles.
    """
    given = tuple(boundaries)
    is_ascending = all(lower < upper for lower, upper in pairwise(given))
    if not is_ascending or not given or (given[0], given[-1]) != (0, MAX_HASH) or len(given) > MAX_BUNDLES + 1:
        raise InvalidArgumentError(
            f"The boundaries of bundles must ascend from 0x00000000 to 0xffffffff, for at most {MAX_BUNDLES} bundles."
        )
    return given


def bundles_of(view: RecentView, namespace: str, default_count: int) -> NamespaceBundles:
    """Return the bundles of a namespace.

    Args:
        view: The metadata.
        namespace: `tenant/namespace`.
        default_count: The number of bundles of a namespace without a record.
    """
    record = view.get(BundlesRecord, namespace)
    if record is None:
        return NamespaceBundles(namespace, equal_boundaries(default_count), (BundleOwner(),) * default_count)
    return NamespaceBundles(namespace, record.boundaries, record.owners)


# -- owners ------------------------------------------------------------------------------------------------------------


def effective_owner(view: RecentView, owner: BundleOwner) -> str | None:
    """Return the incarnation that owns a bundle; None if the bundle has no owner, or its owner is CLOSED.

    An incarnation that is IN_RECOVERY still owns its bundles: they become free when the recovery closes it.
    """
    return None if owner.incarnation is None or is_over(view, owner.incarnation) else owner.incarnation


def is_open(view: RecentView, incarnation: str) -> bool:
    """Return True if an incarnation is OPEN, so that it can own bundles and serve them."""
    record = view.get(IncarnationRecord, incarnation)
    return record is not None and record.state == "OPEN"


def is_over(view: RecentView, incarnation: str) -> bool:
    """Return True if an incarnation is CLOSED. Its record is deleted when all its frames are sealed, maybe at once."""
    record = view.get(IncarnationRecord, incarnation)
    return record is None or record.state == "CLOSED"


def decide_assign(view: View, owners: Mapping[Bundle, str], default_count: int, now: datetime) -> Change | None:
    """Return the change that assigns bundles to incarnations; None if there is nothing to change.

    Bundles that have an owner, were split, or belong to a deleted namespace are left out. The caller reads the new
    owners from the next view.

    Args:
        view: The metadata.
        owners: The incarnation for each bundle; an incarnation that is not OPEN gets no bundles.
        default_count: The number of bundles of a namespace without a record.
        now: The current time.
    """
    changed: dict[str, NamespaceBundles] = {}
    for bundle, incarnation in owners.items():
        if view.get(NamespaceRecord, bundle.namespace) is None or not is_open(view, incarnation):
            continue
        bundles = changed.get(bundle.namespace) or bundles_of(view, bundle.namespace, default_count)
        if bundle in list(bundles) and effective_owner(view, bundles.owner_of(bundle)) is None:
            changed[bundle.namespace] = bundles.with_owner(bundle, incarnation, now)
    return _change(view, changed.values())


def decide_give(
    view: View, given: Mapping[Bundle, int], incarnation: str, to: str | None, default_count: int, now: datetime
) -> Change | None:
    """Return the change by which an incarnation gives up bundles; None if it no longer owns any of them.

    Args:
        view: The metadata.
        given: Each bundle with its epoch at the time when the owner began to close the bundle's topics. If a bundle was
            split since then, its parts are given up.
        incarnation: The owner, which has closed the topics of these bundles.
        to: The incarnation that becomes the owner. If it is None or not OPEN, the bundles have no owner.
        default_count: The number of bundles of a namespace without a record.
        now: The current time.
    """
    next_owner = to if to is not None and is_open(view, to) else None
    changed: dict[str, NamespaceBundles] = {}
    for whole, epoch in given.items():
        bundles = changed.get(whole.namespace) or bundles_of(view, whole.namespace, default_count)
        for bundle in bundles:
            owner = bundles.owner_of(bundle)
            if whole.covers(bundle) and (owner.incarnation, owner.epoch) == (incarnation, epoch):
                changed[whole.namespace] = bundles = bundles.with_owner(bundle, next_owner, now)
    return _change(view, changed.values())


def decide_split(view: View, bundle: Bundle, positions: Sequence[int], default_count: int) -> Change | None:
    """Return the change that splits a bundle; None if no position is inside. The owner keeps all parts.

    Args:
        view: The metadata.
        bundle: The bundle.
        positions: The hashes at which parts begin, in any order.
        default_count: The number of bundles of a namespace without a record.

    Raises:
        InvalidArgumentError: the bundle was split meanwhile, or the namespace would have more than `MAX_BUNDLES`.
        NamespaceNotFoundError: the namespace was deleted.
    """
    if view.get(NamespaceRecord, bundle.namespace) is None:
        raise NamespaceNotFoundError(
            f"Namespace {bundle.namespace} was deleted, so its bundles cannot be split: create it first."
        )
    bundles = bundles_of(view, bundle.namespace, default_count)
    bundles.require_bundle(bundle.hash_range)
    inside = sorted({position for position in positions if bundle.lower < position < bundle.upper})
    if not inside:
        return None
    number = bundles.boundaries.index(bundle.lower)
    boundaries = check_boundaries((*bundles.boundaries[: number + 1], *inside, *bundles.boundaries[number + 1 :]))
    owner = bundles.owners[number]
    owners = (*bundles.owners[:number], *(owner,) * (len(inside) + 1), *bundles.owners[number + 1 :])
    return _change(view, [NamespaceBundles(bundle.namespace, boundaries, owners)])


def new_record(namespace: str, boundaries: Sequence[int]) -> BundlesRecord:
    """Return the record of a new namespace's bundles with these boundaries (errors as `check_boundaries`)."""
    checked = check_boundaries(boundaries)
    return BundlesRecord(namespace=namespace, boundaries=checked, owners=(BundleOwner(),) * (len(checked) - 1))


def _change(view: View, changed: Collection[NamespaceBundles]) -> Change | None:
    """Return the change that stores these bundles; None if there are none."""
    if not changed:
        return None
    puts, moves = features.using(view, features.BUNDLES, "write")
    moved = {keys.bundles(bundles.namespace): None for bundles in changed}
    return Change(puts=[*(bundles.record() for bundles in changed), *puts], keys={**moved, **moves})


def _some(bundles: NamespaceBundles) -> list[str]:
    """Return the ranges to list in an error; of more than 8, the first 8 and `...`."""
    ranges = [bundle.hash_range for bundle in bundles]
    return ranges if len(ranges) <= 8 else [*ranges[:8], "..."]
