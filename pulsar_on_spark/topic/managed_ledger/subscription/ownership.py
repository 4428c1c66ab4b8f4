"""Ownership of a subscription's slots on one topic, and each owner's position: the rules, without any IO.

A stream reader applies them once in each `latestOffset`, when the batch that ends at its start is committed:

    read record, cursor rows and leases -> decide -> apply -> compare-and-set the record -> held_after
                                                                                           └─ a conflict: read and
                                                                                           decide again
    planned(...) -> the next end offset           later, when it is committed: cursor_moves(...) -> cursor rows

The rules, for each slot:

    owner in the record                        a reader that should have the slot           that should not
    -----------------------------------------  -------------------------------------------  ---------------
    this consumer, epoch of this process       Keep                                         Release
    this consumer, not taken by this process   Take at once (a restart)                     Release
    this consumer, under another epoch         Fenced: another process of this consumer     Fenced
    another, its lease has run out; or none    Take                                         -
    another, live or not yet known             wait (Exclusive, known to be live: Refuse)   -

Every change of owner has a new epoch, and the record has the position at which that epoch begins. So owner, epoch and
position change in one commit, and rows that a former owner still writes under its old epoch do not count. Nor do rows
that it wrote after the new owner had read the cursor: those messages are delivered again, and none is skipped. Safety
depends on this alone; leases only decide how soon a takeover happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pulsar_on_spark.metadata.records import SlotOwner, SubscriptionRecord
from pulsar_on_spark.model.errors import ConsumerBusyError, ConsumerFencedError
from pulsar_on_spark.model.ids import Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import ALL, SlotRange, TopicOffset
from pulsar_on_spark.topic.managed_ledger.subscription.positions import owners_by_slot, start_of
from pulsar_on_spark.topic.managed_ledger.subscription.slots import SLOTTED, UNDIVIDED, slots_of, targets

SubscriptionType = Literal["Exclusive", "Failover", "Shared", "Key_Shared"]


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts for a reader's decision; record and cursor are read after the leases.

    Attributes:
        consumer: This reader's consumer id.
        type: The subscription type that the query asks for.
        topic: The topic's full name, for error messages.
        record: The current record of the subscription.
        cursor: `current_positions`.
        others: Lease states of the consumers that read this topic under the subscription (this one's is ignored); an
            absent consumer has no lease file, so its lease has run out.
        held: The epoch of each slot that this process took (`held_after` the last decision that was committed).
        committed: The ranges that the query's last committed batch read of this topic (Spark's start); None for a new
            query.
        stopping: True if the query ends: it must release all slots.
        holder: The lease state of the broker that owns the subscription, if one does.
        finishing: True if an AvailableNow query has read its own slots: it takes all slots that no live consumer owns,
            even those intended for another consumer, and releases none before it ends.
    """

    consumer: str
    type: SubscriptionType
    topic: str
    record: SubscriptionRecord
    cursor: Mapping[int, Position]
    others: Mapping[str, LeaseState]
    held: Mapping[int, int]
    committed: TopicOffset | None
    stopping: bool = False
    holder: LeaseState = LeaseState.ALIVE
    finishing: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Continue to read these slots, from these positions, under their present epochs."""

    epoch: int
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Take:
    """Own these slots from now on under a new epoch, and read them from these positions."""

    consumer: str
    epoch: int
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Release:
    """Free these slots at these committed positions, under a new epoch."""

    epoch: int
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop reading these slots, which other consumers took; these may deliver messages again that were read before."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standby:
    """Wait, because this reader owns no slot now: return the start verbatim and decide again later.

    While it is not known if the slots' owners are alive, which takes one lease period at most, an AvailableNow query
    waits instead of ending without messages.
    """


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop this query, because another consumer owns the subscription: it fails with `error()`."""

    text: str

    def error(self) -> ConsumerBusyError:
        """The error to raise."""
        return ConsumerBusyError(self.text)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Stop this query, because another process took over or the cursor was reset: it fails with `error()`."""

    text: str

    def error(self) -> ConsumerFencedError:
        """The error to raise."""
        return ConsumerFencedError(self.text)


Action = Keep | Take | Release | Lost | Standby | Refuse | Fenced


def decide(situation: Situation) -> tuple[Action, ...]:
    """Decide the next actions. `Refuse` and `Fenced` come alone.

    Before the replay of a batch that Spark logged but did not commit, the caller must obey `Refuse` and `Fenced` (under
    Exclusive also wait while `Standby`) and ignore other actions: such a batch is planned from its own offset, and
    until it is committed no slot may be taken or released at a position beyond it.
    """
    stop = _reset(situation) or _busy(situation) or _fenced(situation)
    if stop is not None:
        return (stop,)
    record, held = situation.record, situation.held
    owners = owners_by_slot(record)
    wanted = frozenset() if situation.stopping else _wanted(situation, owners)
    keep: dict[int, dict[int, Position]] = {}
    take: dict[int, Position] = {}
    release: dict[int, Position] = {}
    for slot in slots_of(record.type):
        owner = owners.get(slot)
        if owner is not None and _is_mine(situation, owner):
            at = _resume(situation, owner, slot)
            if slot in wanted and slot in held:
                keep.setdefault(owner.epoch, {})[slot] = at
            elif slot in wanted:
                take[slot] = at
            elif slot in held or not situation.stopping:
                release[slot] = at
        elif slot in wanted and not _has_live_owner(owner, situation.others):
            take[slot] = _resume(situation, owner, slot)

    epoch = next_epoch(record)
    lost = tuple(slot for slot in sorted(held) if not _is_mine(situation, owners.get(slot)))
    actions: list[Action] = [Keep(kept, keep[kept]) for kept in sorted(keep)]
    if take:
        actions.append(Take(situation.consumer, epoch, take))
    if release:
        actions.append(Release(epoch, release))
    if lost:
        actions.append(Lost(lost))
    if not (keep or take):
        actions.append(Standby())
    return tuple(actions)


def held_after(actions: Iterable[Action]) -> dict[int, int]:
    """Return the epoch of each slot that this process owns once `apply` of these actions is committed, if needed."""
    return {slot: action.epoch for action in actions if isinstance(action, Keep | Take) for slot in action.positions}


def apply(record: SubscriptionRecord, actions: Iterable[Action]) -> SubscriptionRecord:
    """Apply actions to the record on which they were decided; the caller commits the result against that record.

    Returns:
        The new record, or the same one if there is nothing to commit. Slots of one owner, epoch and position are one
        range.

    Raises:
        ValueError: the actions were decided on another record: decide again.
    """
    owners = owners_by_slot(record)
    changes = [action for action in actions if isinstance(action, Take | Release)]
    for action in changes:
        if action.epoch != next_epoch(record):
            raise ValueError(
                f"Epoch {action.epoch} does not follow {next_epoch(record) - 1}: decide again on this record."
            )
        consumer = action.consumer if isinstance(action, Take) else None
        for slot, start in action.positions.items():
            owners[slot] = _owner(consumer, action.epoch, start, (slot,))
    if not changes:
        return record
    face = "spark" if any(owner.consumer is not None for owner in owners.values()) else None
    return record.model_copy(update={"owners": _grouped(owners), "face": face})


def planned(
    topic_id: TopicId, subscription_type: SubscriptionType, actions: Iterable[Action], end: Position
) -> TopicOffset:
    """Plan the next batch of the topic: every slot kept or taken, from its position up to `end`.

    A slot that is already past `end` keeps its position.
    """
    return TopicOffset(
        topic_id,
        tuple(
            SlotRange(
                ALL if slots_of(subscription_type) is UNDIVIDED else (slot,), action.epoch, start, max(start, end)
            )
            for action in actions
            if isinstance(action, Keep | Take)
            for slot, start in action.positions.items()
        ),
    )


def next_epoch(record: SubscriptionRecord) -> int:
    """Return the epoch of the next change of owner, or of a reset: above all epochs in the record."""
    return max([record.start_epoch, *(owner.epoch for owner in record.owners)]) + 1


def holes_since(record: SubscriptionRecord) -> int:
    """Return the oldest epoch whose rows' ack holes count: a reset drops earlier holes, a change of type does not."""
    return record.start_epoch if record.holes_since_epoch is None else record.holes_since_epoch


def retyped(record: SubscriptionRecord, type_: SubscriptionType, start: Position, epoch: int) -> SubscriptionRecord:
    """Return a subscription with another type and no owner, at a position: queries of the old type must stop."""
    return record.model_copy(
        update={
            "type": type_,
            "owners": (),
            "start_ledger": start.ledger,
            "start_entry": start.entry,
            "start_epoch": epoch,
            "holes_since_epoch": holes_since(record),
        }
    )


def _reset(situation: Situation) -> Fenced | None:
    """Return Fenced if the cursor was reset under the query, because further reading would undo the reset.

    Epoch 0 does not count: its messages were read without a subscription.
    """
    record, committed = situation.record, situation.committed
    epochs = [*situation.held.values(), *(range_.epoch for range_ in (committed.ranges if committed else ()))]
    if not any(0 < epoch < record.start_epoch for epoch in epochs):
        return None
    return Fenced(
        f"{_name(situation)}: the cursor was reset to {record.start_ledger}:{record.start_entry} under this query. "
        "Start it with a new checkpointLocation to continue from there."
    )


def _busy(situation: Situation) -> Refuse | Standby | None:
    record = situation.record
    if record.face == "broker" and situation.holder is not LeaseState.ALIVE:
        return Standby()  # the subscription is acquired as soon as the broker is known to be dead
    if record.face == "broker":
        return Refuse(f"{_name(situation)} is held by Pulsar clients: stop them, or use another subscription.")
    if record.type != situation.type:
        owners = {owner.consumer for owner in record.owners} - {None, situation.consumer}
        states = {situation.others.get(owner or "", LeaseState.EXPIRED) for owner in owners}
        if LeaseState.UNKNOWN in states and LeaseState.ALIVE not in states and not situation.held:
            return Standby()  # its consumers may be gone, and then the type may be changed
        return Refuse(
            f"{_name(situation)} is {record.type}, and this query asks for {situation.type}: "
            f"set subscriptionType to {record.type}, or use another subscription."
        )
    owner = owners_by_slot(record).get(0)
    if record.type != "Exclusive" or situation.held or owner is None or owner.consumer in (None, situation.consumer):
        return None
    if situation.others.get(owner.consumer or "") is not LeaseState.ALIVE:
        return None
    return Refuse(
        f"{_name(situation)} is Exclusive and consumer {owner.consumer!r} is reading it: "
        "stop that query, or use another subscription or type."
    )


def _fenced(situation: Situation) -> Fenced | None:
    owners = owners_by_slot(situation.record)
    for slot, epoch in situation.held.items():
        owner = owners.get(slot)
        if owner is not None and _is_mine(situation, owner) and owner.epoch != epoch:
            return Fenced(
                f"{_name(situation)}: another process took over as the same consumer {situation.consumer!r}. "
                "Stop one of the two queries, or give them different consumerName options."
            )
        if not _is_mine(situation, owner) and situation.record.type == "Exclusive":
            return Fenced(
                f"{_name(situation)}: another consumer took it when this query's lease had run out. "
                "Stop the other query and restart this one; messages may be delivered twice."
            )
    return None


def _wanted(situation: Situation, owners: Mapping[int, SlotOwner]) -> frozenset[int]:
    """Return the slots that this consumer should own."""
    live = {name for name, state in situation.others.items() if state is not LeaseState.EXPIRED}
    live.add(situation.consumer)
    held_by_live = {slot: owner.consumer for slot, owner in owners.items() if owner.consumer in live}
    if situation.record.type == "Exclusive":
        return frozenset({0})
    if situation.record.type == "Failover":
        active = held_by_live.get(0) or min(live)
        return frozenset({0} if active == situation.consumer else ())
    if situation.finishing:
        return frozenset(slot for slot in SLOTTED if held_by_live.get(slot) in (None, situation.consumer))
    aims = targets(live, {slot: name for slot, name in held_by_live.items() if name is not None})
    return frozenset(slot for slot, name in aims.items() if name == situation.consumer)


def _is_mine(situation: Situation, owner: SlotOwner | None) -> bool:
    return owner is not None and owner.consumer == situation.consumer


def _has_live_owner(owner: SlotOwner | None, others: Mapping[str, LeaseState]) -> bool:
    if owner is None or owner.consumer is None:
        return False
    return others.get(owner.consumer, LeaseState.EXPIRED) is not LeaseState.EXPIRED


def _resume(situation: Situation, owner: SlotOwner | None, slot: int) -> Position:
    """Return the position to continue from: the checkpoint's if no other owner took the slot, else the later of both.

    Both are the checkpoint's position and the cursor's. The checkpoint may be behind the cursor after a power cut,
    because Spark does not sync its commit log: then the batches that it lost are read again.
    """
    cursor = situation.cursor[slot]
    done = situation.committed.at(slot) if situation.committed is not None else None
    if done is None:
        return cursor
    if owner is not None and owner.epoch == done.epoch:
        return done.end
    return max(done.end, cursor)


def _owner(consumer: str | None, epoch: int, start: Position, slots: tuple[int, ...]) -> SlotOwner:
    return SlotOwner(consumer=consumer, epoch=epoch, start_ledger=start.ledger, start_entry=start.entry, slots=slots)


def _grouped(owners: Mapping[int, SlotOwner]) -> tuple[SlotOwner, ...]:
    def value(slot: int) -> tuple[int, str, Position]:
        owner = owners[slot]
        return (owner.epoch, owner.consumer or "", start_of(owner))

    groups = [tuple(slots) for _, slots in groupby(sorted(sorted(owners), key=value), key=value)]
    return tuple(
        _owner(owners[slots[0]].consumer, owners[slots[0]].epoch, start_of(owners[slots[0]]), slots) for slots in groups
    )


def _name(situation: Situation) -> str:
    return f"Subscription {situation.record.name!r} on topic {situation.topic!r}"
