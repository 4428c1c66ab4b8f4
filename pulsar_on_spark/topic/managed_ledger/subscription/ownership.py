"""The rules for owners and positions of a subscription's slots on one topic, without any IO.

A stream reader applies them once in each `latestOffset`, when the batch that ends at the given start is committed:

    read record, cursor rows and leases -> decide -> apply -> compare-and-set the record -> held_after
                                                                                           └─ a conflict: read and
                                                                                           decide again
    planned(...) -> the next end offset           later, when it is committed: cursor_moves(...) -> cursor rows

The rules, for each slot. The slot is wanted if it is a target of this consumer (`slots.targets`):

    owner in the record                        if the slot is wanted                        if it is not wanted
    -----------------------------------------  -------------------------------------------  -------------------
    this consumer, epoch of this process       Keep                                         Release
    this consumer, from an earlier process     Take at once (a restart)                     Release
    this consumer, under another epoch         Fenced: another process of this consumer     Fenced
    none, or a consumer with an expired lease  Take                                         -
    a consumer that is live or may be live     wait (Exclusive, known to be live: Refuse)   -

Every change of owner begins a new epoch, and the record has the position at which that epoch begins. So owner, epoch
and position change in one commit. Rows that a former owner writes under its old epoch after the new owner has read the
cursor do not count: their messages are delivered again, and no message is skipped. Safety depends only on this rule.
Leases only decide how soon a takeover happens.
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
    """The facts for a reader's decision. The record and the cursor must be read after the leases.

    Attributes:
        consumer: This reader's consumer id.
        type: The subscription type that the query requests.
        topic: The topic's full name, for error messages.
        record: The current record of the subscription.
        cursor: The position of each slot (`current_positions`).
        others: The lease states of the consumers that read this topic under the subscription. This consumer's state is
            ignored. A consumer that is absent has no lease and counts as dead.
        held: The epoch of each slot that this process took (`held_after` for the last committed decision).
        committed: The ranges that the query's last committed batch read of this topic (Spark's start); None for a new
            query.
        stopping: True if the query ends and must release all slots.
        holder: The lease state of the broker that owns the subscription; unused if no broker owns it.
        finishing: True if an AvailableNow query has read its own slots. The query then takes all slots without a live
            owner, even targets of other consumers, and releases no slot before it ends.
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
    """Continue to read these slots, from these positions, under their current epoch."""

    epoch: int
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Take:
    """Acquire these slots under a new epoch, and read them from these positions."""

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
    """Stop reading these slots, which other consumers took. Messages that were read may be delivered to them again."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standby:
    """Wait, because this reader owns no slot now: return the start unchanged and decide again later.

    An AvailableNow query must wait while it is unknown if the slots' owners are alive, which takes at most a lease's
    duration. Otherwise the query would end without having read messages.
    """


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let this query fail with `error()`, because another consumer owns the subscription."""

    text: str

    def error(self) -> ConsumerBusyError:
        """The error to raise."""
        return ConsumerBusyError(self.text)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Let this query fail with `error()`, because another process took over or the cursor was reset."""

    text: str

    def error(self) -> ConsumerFencedError:
        """The error to raise."""
        return ConsumerFencedError(self.text)


Action = Keep | Take | Release | Lost | Standby | Refuse | Fenced


def decide(situation: Situation) -> tuple[Action, ...]:
    """Return the next actions. `Refuse` or `Fenced` is always the only action.

    Before Spark replays a batch that it logged but did not commit, the caller must obey `Refuse`, `Fenced` and, under
    Exclusive, `Standby`, and must ignore all other actions. Such a batch is planned from its own offset. Until it is
    committed, no slot may be taken or released at a position beyond it.
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
    """Return, by slot, the epoch of each slot that this process owns after the commit of these actions."""
    return {slot: action.epoch for action in actions if isinstance(action, Keep | Take) for slot in action.positions}


def apply(record: SubscriptionRecord, actions: Iterable[Action]) -> SubscriptionRecord:
    """Apply actions to the record on which they were decided. The caller commits the result against that record.

    Returns:
        The new record, or the given one if there is nothing to commit. Slots with the same owner, epoch and position
        are grouped.

    Raises:
        ValueError: the actions were decided on another record: decide again.
    """
    owners = owners_by_slot(record)
    changes = [action for action in actions if isinstance(action, Take | Release)]
    for action in changes:
        if action.epoch != next_epoch(record):
            raise ValueError(
                f"Epoch {action.epoch} does not follow {next_epoch(record) - 1}: read the subscription again."
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
    """Return the next batch of the topic, which reads every slot that is kept or taken from its position to `end`.

    A slot whose position is already after `end` keeps its position, and reads nothing.
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
    """Return the epoch for the next change of owner or reset: the highest epoch in the record, plus 1."""
    return max([record.start_epoch, *(owner.epoch for owner in record.owners)]) + 1


def holes_since(record: SubscriptionRecord) -> int:
    """Return the lowest epoch of cursor rows whose ack holes count. A reset raises it; a change of type does not."""
    return record.start_epoch if record.holes_since_epoch is None else record.holes_since_epoch


def retyped(record: SubscriptionRecord, type_: SubscriptionType, start: Position, epoch: int) -> SubscriptionRecord:
    """Return the subscription with another type, without owners, and with all slots at `start` under the epoch.

    Queries that read it under the old type fail.
    """
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
    """Return Fenced if the cursor was reset while the query ran, because the query would undo the reset. Else None.

    Epoch 0 is ignored, because its messages were read without a subscription.
    """
    record, committed = situation.record, situation.committed
    epochs = [*situation.held.values(), *(range_.epoch for range_ in (committed.ranges if committed else ()))]
    if not any(0 < epoch < record.start_epoch for epoch in epochs):
        return None
    return Fenced(
        f"{_name(situation)}: the cursor was reset to {record.start_ledger}:{record.start_entry} while this query ran: "
        "start the query with a new checkpointLocation to continue from there."
    )


def _busy(situation: Situation) -> Refuse | Standby | None:
    """Return Refuse or Standby if another owner keeps this reader from the whole subscription, else None."""
    record = situation.record
    if record.face == "broker" and situation.holder is not LeaseState.ALIVE:
        return Standby()  # the subscription can be acquired when the broker is known to be dead
    if record.face == "broker":
        return Refuse(f"{_name(situation)} is held by Pulsar clients: stop them, or use another subscription.")
    if record.type != situation.type:
        owners = {owner.consumer for owner in record.owners} - {None, situation.consumer}
        states = {situation.others.get(owner or "", LeaseState.EXPIRED) for owner in owners}
        if LeaseState.UNKNOWN in states and LeaseState.ALIVE not in states and not situation.held:
            return Standby()  # if its consumers turn out to be dead, the type can be changed
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
    """Return Fenced if another process or consumer took a slot that this process held; None if no slot was taken."""
    owners = owners_by_slot(situation.record)
    for slot, epoch in situation.held.items():
        owner = owners.get(slot)
        if owner is not None and _is_mine(situation, owner) and owner.epoch != epoch:
            return Fenced(
                f"{_name(situation)}: another process took over as the same consumer {situation.consumer!r}: "
                "stop one of the two queries, or give them different consumerName options."
            )
        if not _is_mine(situation, owner) and situation.record.type == "Exclusive":
            return Fenced(
                f"{_name(situation)}: another consumer took it after this query's lease had run out, so messages may "
                "be delivered twice: stop the other query and restart this one."
            )
    return None


def _wanted(situation: Situation, owners: Mapping[int, SlotOwner]) -> frozenset[int]:
    """Return the slots that this consumer should own: the wanted slots of the module's table."""
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
    """Return the position from which to continue a slot. `owner` is None if the slot was never taken.

    It is the checkpoint's position if no other owner has taken the slot since, else the later one of the checkpoint's
    and the cursor's position. After a power cut, the checkpoint may be behind the cursor, because Spark does not sync
    its commit log. The query then reads the lost batches again.
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
