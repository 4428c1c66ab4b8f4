"""The invariants: checked at each commit, at each load of a topic, and when a recovery begins."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pulsar_on_spark.metadata.records import (
    BundleOwner,
    BundlesRecord,
    IncarnationRecord,
    LedgerRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog.bundles import MAX_HASH, NamespaceBundles, equal_boundaries
from tests.simulators.cluster.metadata import Commit
from tests.simulators.cluster.scheduler import LONGEST_S, Life

if TYPE_CHECKING:
    from tests.simulators.cluster.world import World


BEGUN_S: Final = 2 * LONGEST_S
"""The longest time from a judgement to the beginning of the recovery, in seconds in which the machine runs."""


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Oracle:
    """The judge of a run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _require(self, holds: object, what: str) -> None:
        if not holds:
            self._world.scheduler.failure = self._world.scheduler.failure or ViolationError(
                f"at {self._world.scheduler.now_s:.3f} s: {what}"
            )

    def on_commit(self, commit: Commit) -> None:
        """Check a commit."""
        for record in commit.change.puts:
            if isinstance(record, BundlesRecord):
                self._check_bundles(commit, record)
            elif isinstance(record, LedgerRecord):
                self._check_ledgers(commit.after, record.topic_id)

    def on_load(self, incarnation: str, view: View, name: TopicName) -> None:
        """Check the load of a topic: the view that it is based on does not say that another broker owns it."""
        owner = effective_owner(view, bundles_in(view, name.namespace), name)
        self._require(owner in (None, incarnation), f"{incarnation} loads {name}, which its view gives to {owner}")

    def on_recovery(self, by: str, incarnation: str) -> None:
        """Check a recovery: the broker is dead, or was silent while others could have heard it."""
        victim = self._world.brokers_by_name[incarnation]
        if victim.loop.life is Life.DEAD:
            return
        heard_at = self._world.heard_at
        silent_ago_s = heard_at(self._world.scheduler.now_s) - heard_at(victim.incarnation.silent_until_s)
        is_due = victim.incarnation.was_silent or silent_ago_s < BEGUN_S
        self._require(is_due, f"{by} recovers {incarnation}, which has renewed its lease")

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def _check_ledgers(self, view: View, topic_id: str) -> None:
        """I18: at most one incarnation that is not CLOSED has an open ledger of a topic."""
        owners = _writers(view, topic_id)
        self._require(len(owners) <= 1, f"{sorted(owners)} have open ledgers of {topic_id}")

    # -- bundles -------------------------------------------------------------------------------------------------------

    def _check_bundles(self, commit: Commit, record: BundlesRecord) -> None:
        """I19: the bundles cover all hashes once, epochs grow, and only an owner gives a bundle up."""
        old = bundles_in(commit.before, record.namespace)
        new = bundles_in(commit.after, record.namespace)
        ends = new.boundaries
        is_whole = ends[0] == 0 and ends[-1] == MAX_HASH and all(lower < upper for lower, upper in pairwise(ends))
        self._require(is_whole and len(new.owners) == len(ends) - 1, f"bundles {ends} of {len(new.owners)} owners")
        self._require(set(old.boundaries) <= set(ends), f"bundles {old.boundaries} became {ends}")
        for bundle, owner in zip(new, new.owners, strict=True):
            before = next(was for whole, was in zip(old, old.owners, strict=True) if whole.covers(bundle))
            if owner == before:
                continue
            self._require(ends == old.boundaries, f"a split changed {before} to {owner}")
            self._require(owner.epoch == before.epoch + 1, f"epoch {before.epoch} became {owner.epoch}")
            if before.incarnation is None or is_over(commit.before, before.incarnation):
                continue
            self._require(
                commit.by == before.incarnation,
                f"{commit.by} took {bundle} from {before.incarnation}, which is not over",
            )
            for topic in commit.decided.all(TopicRecord):
                name = TopicName.parse(topic.name)
                is_written = name in bundle and before.incarnation in _writers(commit.decided, topic.topic_id)
                self._require(not is_written, f"{commit.by} gave {bundle} with an open ledger of {name}")


def _writers(view: RecentView, topic_id: str) -> Collection[str]:
    """Return the incarnations, not CLOSED ones, with open ledgers of a topic."""
    ledgers = view.all(LedgerRecord, topic_id)
    return {ledger.incarnation for ledger in ledgers if ledger.incarnation is not None and not ledger.closed} - {
        record.incarnation for record in view.all(IncarnationRecord) if record.state == "CLOSED"
    }


def is_over(view: RecentView, incarnation: str) -> bool:
    """Return True if an incarnation is CLOSED. The rules are repeated here, where no mutant reaches them."""
    record = view.get(IncarnationRecord, incarnation)
    return record is None or record.state == "CLOSED"


def bundles_in(view: RecentView, namespace: str) -> NamespaceBundles:
    """Return the bundles of a namespace; 4 equal ones without a record."""
    record = view.get(BundlesRecord, namespace)
    if record is None:
        return NamespaceBundles(namespace, equal_boundaries(4), (BundleOwner(),) * 4)
    return NamespaceBundles(namespace, record.boundaries, record.owners)


def effective_owner(view: RecentView, bundles: NamespaceBundles, name: TopicName) -> str | None:
    """Return the incarnation that owns a topic's bundle, unless it is over."""
    owner = next(owner for bundle, owner in zip(bundles, bundles.owners, strict=True) if name in bundle).incarnation
    return None if owner is None or is_over(view, owner) else owner
