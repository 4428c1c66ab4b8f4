"""The rules of ownership and takeover, each broken: (owner, name, broken) patches by the rule's name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from pulsar_on_spark.broker.cluster import ownership, takeover
from pulsar_on_spark.broker.cluster.handover import Handover
from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.metadata.records import BundleOwner, BundlesRecord, IncarnationRecord
from pulsar_on_spark.metadata.state import RecentView, View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import bundles
from pulsar_on_spark.topic.catalog.bundles import Bundle
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher


class Mutant(NamedTuple):
    """A broken rule: of each patch, `owner.name` is replaced."""

    name: str
    patches: tuple[tuple[Any, str, Any], ...]


_decide_split = bundles.decide_split


async def _none_unclosed(self: Handover, given: Collection[Bundle]) -> list[TopicName]:
    return []


def _no_owner(view: RecentView, owner: BundleOwner) -> str | None:
    return None


def _recorded_owner(view: RecentView, owner: BundleOwner) -> str | None:
    return owner.incarnation


def _over_when_not_open(view: RecentView, incarnation: str) -> bool:
    record = view.get(IncarnationRecord, incarnation)
    return record is None or record.state != "OPEN"


def _split_frees_the_parts(view: View, bundle: Bundle, positions: Sequence[int], default_count: int) -> Change | None:
    change = _decide_split(view, bundle, positions, default_count)
    if change is None:
        return None
    (record,) = (each for each in change.puts if isinstance(each, BundlesRecord))
    first = record.boundaries.index(bundle.lower) + 1
    owners = (*record.owners[:first], BundleOwner(epoch=record.owners[first].epoch), *record.owners[first + 1 :])
    return Change(puts=[record.model_copy(update={"owners": owners})], keys=change.keys)


def _never_blind(own_lease_pause_s: float) -> bool:
    return False


def _judged_by_its_age(self: LeaseWatcher, consumer: str) -> LeaseState:
    is_stale = self.has_lease(consumer) and self.looks_stale(consumer, self._clock())
    return LeaseState.EXPIRED if is_stale else LeaseState.ALIVE


def _nothing_is_elsewhere(self: Ownership, view: RecentView, name: TopicName) -> bool:
    return False


async def _all_is_served(self: Ownership, name: TopicName) -> None:
    await self.find_owner(name)


def _nothing_leaves(self: Ownership, bundle: Bundle) -> None:
    return None


MUTANTS: Final = (
    Mutant("a bundle is given while a ledger is open", ((Handover, "_unclosed", _none_unclosed),)),
    Mutant("a bundle is assigned over a living owner", ((bundles, "effective_owner", _no_owner),)),
    Mutant(
        "an owner that is CLOSED owns",
        ((bundles, "effective_owner", _recorded_owner), (ownership, "effective_owner", _recorded_owner)),
    ),
    Mutant("an owner that is being recovered owns nothing", ((bundles, "is_over", _over_when_not_open),)),
    Mutant("a split moves an owner", ((bundles, "decide_split", _split_frees_the_parts),)),
    Mutant("an observer judges after a pause, and while it cannot write", ((takeover, "may_be_blind", _never_blind),)),
    Mutant("an observer judges at its first look", ((LeaseWatcher, "lease_state", _judged_by_its_age),)),
    Mutant(
        "a broker serves a bundle of another",
        ((Ownership, "is_elsewhere", _nothing_is_elsewhere), (Ownership, "require_served", _all_is_served)),
    ),
    Mutant("a topic is loaded while its bundle is given", ((Ownership, "_leaving_with", _nothing_leaves),)),
)
