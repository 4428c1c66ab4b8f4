"""Subscriptions in the metadata: creating, listing, deleting, and what is behind their cursors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import Record, SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import ConsumerBusyError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import Position, TopicId
from pulsar_on_spark.topic import chain
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.leases import LeaseWatcher
from pulsar_on_spark.topic.ownership import Standing, SubscriptionType, current_positions, mark_delete, next_epoch
from pulsar_on_spark.topic.slots import slots_of

_MAX_WAIT_S = 30.0
_WAIT_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription on one topic: its cursor and its backlog.

    `mark_delete` is the next entry to read of the slot that is furthest behind. The backlog counts what is not
    acknowledged; for Key_Shared a slot's share of a range is taken as one 64th.
    """

    topic: str
    name: str
    type: str
    consumers: tuple[str, ...]
    mark_delete: Position
    backlog_messages: int
    backlog_bytes: int


def create_subscriptions(
    store: MetadataStore,
    name: str,
    type_: SubscriptionType,
    starts: Mapping[TopicPart, Position],
    expires_after_s: float | None = None,
) -> None:
    """Create a subscription on topics, where it does not exist yet, each with its own start."""

    def decide(view: View) -> Change | None:
        missing = [part for part in starts if view.get(SubscriptionRecord, f"{part.topic_id}/{name}") is None]
        if not missing:
            return None
        puts: list[Record] = []
        moved: dict[str, int | None] = {}
        for part in missing:
            before = view.last(SubscriptionRecord, f"{part.topic_id}/{name}")
            puts.append(
                SubscriptionRecord(
                    topic_id=part.topic_id,
                    name=name,
                    type=type_,
                    start_ledger=starts[part].ledger,
                    start_entry=starts[part].entry,
                    # Above every epoch of a deleted subscription of this name, whose cursor rows must not count.
                    start_epoch=1 if before is None else next_epoch(before),
                    expires_after_s=expires_after_s,
                    created_at=datetime.now(UTC),
                )
            )
            moved |= {keys.topic(part.name): None, keys.subscription(part.topic_id, name): None}
        return Change(puts=puts, keys=moved)

    store.commit(decide)


def delete_subscription(
    store: MetadataStore, name: str, parts: Sequence[TopicPart], watcher: LeaseWatcher, *, force: bool = False
) -> None:
    """Delete a subscription on topics.

    Without `force`, a consumer whose lease may still run is watched for as long as the lease lasts (30 s at most).

    Raises:
        SubscriptionNotFoundError: none of the topics has it.
        ConsumerBusyError: a consumer is reading it, and `force` is not given.
    """

    def decide(view: View) -> Change:
        found = [(part, view.get(SubscriptionRecord, f"{part.topic_id}/{name}")) for part in parts]
        records = {part: record for part, record in found if record is not None}
        if not records:
            raise SubscriptionNotFoundError(
                f"Subscription {name!r} does not exist on {parts[0].name}: check both names."
            )
        for part, record in records.items():
            standings = watcher.standings(TopicId(part.topic_id))
            for owner in record.owners:
                if (
                    owner.consumer
                    and standings.get(owner.consumer, Standing.RUN_OUT) is not Standing.RUN_OUT
                    and not force
                ):
                    raise ConsumerBusyError(
                        f"Subscription {name!r} on {part.name} is being read by consumer {owner.consumer!r}: stop it "
                        "first, or force the deletion."
                    )
        moved: dict[str, int | None] = {}
        for part in records:
            moved |= {keys.topic(part.name): None, keys.subscription(part.topic_id, name): None}
        return Change(deletes=list(records.values()), keys=moved)

    watcher.observe()
    deadline_s = time.monotonic() + _MAX_WAIT_S
    while not force and _is_uncertain(store.view(), name, parts, watcher) and time.monotonic() < deadline_s:
        time.sleep(_WAIT_STEP_S)
        watcher.observe()
    store.commit(decide)


def _is_uncertain(view: View, name: str, parts: Sequence[TopicPart], watcher: LeaseWatcher) -> bool:
    """Whether an owner has a lease that has not been watched for long enough to tell."""
    for part in parts:
        record = view.get(SubscriptionRecord, f"{part.topic_id}/{name}")
        standings = watcher.standings(TopicId(part.topic_id))
        for owner in record.owners if record is not None else ():
            if owner.consumer is not None and standings.get(owner.consumer) is Standing.UNKNOWN:
                return True
    return False


def retyped(record: SubscriptionRecord, cursors: Cursors, type_: SubscriptionType) -> SubscriptionRecord:
    """The subscription with another type, from where every slot is acknowledged: for when no consumer is left.

    What single slots had acknowledged beyond is delivered again.
    """
    start = mark_delete(record, cursors.of(record.topic_id, record.name))
    return record.model_copy(
        update={
            "type": type_,
            "owners": (),
            "start_ledger": start.ledger,
            "start_entry": start.entry,
            "start_epoch": next_epoch(record),
        }
    )


def status(view: View, cursors: Cursors, part: TopicPart, record: SubscriptionRecord) -> SubscriptionStatus:
    """Cursor and backlog of one subscription on one topic."""
    rows = cursors.of(record.topic_id, record.name)
    end = chain.read_limit(view, part.topic_id)
    slots = slots_of(record.type)
    positions = list(current_positions(record, rows).values())
    messages = size = 0
    for position in sorted(set(positions)):
        plan = chain.plan_range(view, part.name, part.topic_id, part.partition, position, end)
        share = positions.count(position) / len(slots)
        messages += round(plan.rows * share)
        size += round(plan.bytes * share)
    return SubscriptionStatus(
        topic=part.name,
        name=record.name,
        type=record.type,
        consumers=tuple(sorted({owner.consumer for owner in record.owners if owner.consumer})),
        mark_delete=min(positions),
        backlog_messages=messages,
        backlog_bytes=size,
    )
