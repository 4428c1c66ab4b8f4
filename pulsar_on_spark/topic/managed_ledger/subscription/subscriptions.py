"""Creation, restoration, deletion, properties and backlogs of subscriptions in the metadata."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import Record, SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change, MetadataStore
from pulsar_on_spark.model.errors import ConsumerBusyError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.model.names import check_new_name, check_new_properties
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import LeaseWatcher
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.cursor.left_out import acknowledged_rows, left_out
from pulsar_on_spark.topic.managed_ledger.subscription import ownership
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import Release, SubscriptionType, next_epoch
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions, mark_delete
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of
from pulsar_on_spark.topic.managed_ledger.subscription.subscription_status import SubscriptionStatus

_MAX_WAIT_S = 30.0
_WAIT_STEP_S = 0.1


def create_subscriptions(
    store: MetadataStore,
    name: str,
    type_: SubscriptionType,
    starts: Mapping[TopicPart, Position],
    expires_after_s: float | None = None,
) -> None:
    """Create a subscription on the topics in `starts` that lack it.

    Args:
        store: The root's metadata.
        name: The subscription.
        type_: The subscription's type.
        starts: The first entry to read of each topic.
        expires_after_s: Seconds without a consumer after which the subscription is deleted; None to keep it.

    Raises:
        InvalidArgumentError: a topic lacks the subscription, and the name is not valid for a new subscription.
    """

    def decide(view: View) -> Change | None:
        missing = [part for part in starts if view.get(SubscriptionRecord, f"{part.topic_id}/{name}") is None]
        if not missing:
            return None
        check_new_name("Subscription name", name)
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
                    # The epoch is above all epochs of a deleted subscription with this name, whose rows must not count.
                    start_epoch=1 if before is None else next_epoch(before),
                    expires_after_s=expires_after_s,
                    created_at=datetime.now(UTC),
                )
            )
            moved |= {keys.topic(part.name): None, keys.subscription(part.topic_id, name): None}
        return Change(puts=puts, keys=moved)

    store.commit(decide)


def restore_expired(store: MetadataStore, name: str, read: Mapping[TopicPart, TopicOffset]) -> None:
    """Restore an expired subscription on the topics that lack it, without owners and with slots at a query's positions.

    The deleted record returns with one more change of owner. So cursor rows of former epochs do not count, and a query
    that read under one of these epochs may resume unless the cursor was reset since. A subscription that cannot expire,
    or that a broker owned, is not restored, because it was deleted on purpose.

    Args:
        store: The root's metadata.
        name: The subscription.
        read: The ranges that the query has read of each topic, according to its checkpoint. For a slot whose cursor is
            further ahead, the cursor counts instead.
    """

    def decide(view: View) -> Change | None:
        cursors = store.cursors()
        puts: list[Record] = []
        moved: dict[str, int | None] = {}
        for part, topic in read.items():
            record_id = f"{part.topic_id}/{name}"
            former = view.last(SubscriptionRecord, record_id)
            if former is None or view.get(SubscriptionRecord, record_id) is not None:
                continue
            if former.expires_after_s is None or former.face == "broker":
                continue
            positions = current_positions(former, cursors.of(part.topic_id, name))
            for slot, cursor in positions.items():
                done = topic.at(slot)
                positions[slot] = cursor if done is None else max(cursor, done.end)
            freed = ownership.apply(former, (Release(next_epoch(former), positions),))
            puts.append(freed.model_copy(update={"created_at": datetime.now(UTC)}))
            moved |= {keys.topic(part.name): None, keys.subscription(part.topic_id, name): None}
        return Change(puts=puts, keys=moved) if puts else None

    store.commit(decide)


def delete_subscription(
    store: MetadataStore,
    name: str,
    parts: Sequence[TopicPart],
    watcher: LeaseWatcher,
    brokers: LeaseWatcher,
    *,
    force: bool = False,
) -> None:
    """Delete a subscription on the topics in `parts` that have it.

    Without `force`, the lease of each owner that may be alive is first watched for its duration (at most 30 s).

    Args:
        store: The root's metadata.
        name: The subscription.
        parts: The topics.
        watcher: A watcher of the subscription's leases.
        brokers: A watcher of the brokers' leases.
        force: True to delete the subscription even if it has consumers, which then fail.

    Raises:
        SubscriptionNotFoundError: none of the topics has the subscription.
        ConsumerBusyError: a consumer or broker that is or may be alive owns the subscription, and `force` is False.
    """

    def decide(view: View) -> Change:
        records_of_parts = [(part, view.get(SubscriptionRecord, f"{part.topic_id}/{name}")) for part in parts]
        records = {part: record for part, record in records_of_parts if record is not None}
        if not records:
            raise SubscriptionNotFoundError(
                f"Subscription {name!r} does not exist on {parts[0].name}: check both names."
            )
        for part, record in records.items():
            for owner, state in _owner_states(part, record, watcher, brokers).items():
                if state is not LeaseState.EXPIRED and not force:
                    raise ConsumerBusyError(
                        f"Subscription {name!r} on {part.name} is being read by {owner}: stop its consumers first, or "
                        "force the deletion."
                    )
        moved: dict[str, int | None] = {}
        for part in records:
            moved |= {keys.topic(part.name): None, keys.subscription(part.topic_id, name): None}
        return Change(deletes=list(records.values()), keys=moved)

    deadline_s = time.monotonic() + _MAX_WAIT_S
    while True:
        watcher.observe_leases()
        brokers.observe_leases()
        if force or not _is_uncertain(store.view(), name, parts, watcher, brokers) or time.monotonic() >= deadline_s:
            break
        time.sleep(_WAIT_STEP_S)
    store.commit(decide)


def set_subscription_properties(
    store: MetadataStore, name: str, parts: Sequence[TopicRecord], properties: Mapping[str, str]
) -> None:
    """Replace the properties of a subscription on the topics in `parts` that have it.

    Raises:
        SubscriptionNotFoundError: none of the topics has the subscription.
        InvalidArgumentError: there are too many properties, or they are too long.
    """
    check_new_properties(f"Subscription {name!r}", properties)

    def decide(view: View) -> Change:
        records_of_parts = [(part, view.get(SubscriptionRecord, f"{part.topic_id}/{name}")) for part in parts]
        puts = [
            record.model_copy(update={"properties": dict(properties)})
            for _, record in records_of_parts
            if record is not None
        ]
        if not puts:
            raise SubscriptionNotFoundError(
                f"Subscription {name!r} does not exist on {parts[0].name}: check both names."
            )
        return Change(puts=puts, keys={keys.subscription(record.topic_id, name): None for record in puts})

    store.commit(decide)


def _is_uncertain(
    view: View, name: str, parts: Sequence[TopicPart], watcher: LeaseWatcher, brokers: LeaseWatcher
) -> bool:
    """Return True if the lease of an owner was not watched for long enough to know if the owner is alive."""
    records_of_parts = [(part, view.get(SubscriptionRecord, f"{part.topic_id}/{name}")) for part in parts]
    return any(
        LeaseState.UNKNOWN in _owner_states(part, record, watcher, brokers).values()
        for part, record in records_of_parts
        if record is not None
    )


def _owner_states(
    part: TopicPart, record: SubscriptionRecord, watcher: LeaseWatcher, brokers: LeaseWatcher
) -> dict[str, LeaseState]:
    """Return the lease state of each owner, by the owner's description for errors.

    EXPIRED for an owner without a lease.
    """
    owners = [owner.consumer for owner in record.owners if owner.consumer is not None]
    if record.face == "broker":
        return {f"clients of broker {owner}": brokers.lease_state(owner) for owner in owners}
    states = watcher.lease_states(TopicId(part.topic_id))
    return {f"consumer {owner!r}": states.get(owner, LeaseState.EXPIRED) for owner in owners}


def retyped(record: SubscriptionRecord, cursors: Cursors, type_: SubscriptionType) -> SubscriptionRecord:
    """Return a subscription, which must have no consumers, with another type and the position of its slowest slot.

    Messages that other slots have acknowledged beyond that position are delivered again.
    """
    start = mark_delete(record, cursors.of(record.topic_id, record.name))
    return ownership.retyped(record, type_, start, next_epoch(record))


def status(view: View, cursors: Cursors, part: TopicPart, record: SubscriptionRecord) -> SubscriptionStatus:
    """Return the cursor and the backlog of a subscription on one topic, as of this view and these cursors."""
    rows = cursors.of(record.topic_id, record.name)
    end = chain.read_limit(view, part.topic_id)
    slots = slots_of(record.type)
    positions = list(current_positions(record, rows).values())
    skipped = left_out(record, rows)
    face = "broker " if record.face == "broker" else ""
    messages = size = 0
    for position in sorted(set(positions)):
        plan = chain.plan_range(view, part.name, part.topic_id, part.partition, position, end)
        acked_rows, acked_bytes = (0, 0) if skipped is None else acknowledged_rows(plan.slices, skipped.holes)
        share = positions.count(position) / len(slots)
        messages += round((plan.rows - acked_rows) * share)
        size += round((plan.bytes - acked_bytes) * share)
    return SubscriptionStatus(
        topic=part.name,
        name=record.name,
        type=record.type,
        consumers=tuple(sorted({f"{face}{owner.consumer}" for owner in record.owners if owner.consumer})),
        mark_delete=min(positions),
        backlog_messages=messages,
        backlog_bytes=size,
    )
