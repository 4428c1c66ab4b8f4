"""Decisions about a subscription on one view: its owner, its start, and the change to commit. No IO.

    create   no record exists                              commits record, owner, epoch and start, with the topic's key
    take     free, or owned by a Spark consumer whose      starts at the slowest slot; messages that other slots read
             lease has expired                             beyond it, and holes of an earlier broker, are ack holes
    take     owned by a broker incarnation that is CLOSED  starts at the position in its last record
             and whose cursor records are in the table
    refuse   otherwise
    reset    this broker owns it                           a new epoch from the new position, with the topic's key
    release  this broker owns it                           only after the cursor's last row is durable
    delete   this broker owns it

A decision that lacks a fact raises `LacksError`, and is repeated when the fact is known. Cursor records and rows of an
epoch are written only by the owner that the subscription record names with this epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import Cursors
from pulsar_on_spark.metadata.records import (
    CompactionRecord,
    IncarnationRecord,
    LedgerRecord,
    SegmentRecord,
    SlotOwner,
    SubscriptionRecord,
    TopicRecord,
)
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import (
    ConsumerBusyError,
    ConsumerFencedError,
    JournalFencedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.ids import EARLIEST, EntryId, IncarnationId, LedgerId, Position, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.model.names import check_new_name, check_new_properties
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.managed_ledger.cursor.handover import broker_cursor, give_to_spark, take_from_spark
from pulsar_on_spark.topic.managed_ledger.cursor.holes import AckHoles
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import SubscriptionType, next_epoch, retyped
from pulsar_on_spark.topic.managed_ledger.subscription.positions import current_positions
from pulsar_on_spark.topic.managed_ledger.subscription.slots import slots_of

InitialPosition = Position | Literal["earliest", "latest"]
"""Start of a new subscription: the given next entry, the first entry that is kept, or the topic's end."""

_NO_POSITIONS: Final[Mapping[int, Position]] = {}


class LacksError(Exception):
    """A fact that a decision needs is missing. Callers outside this package never get this error."""


class LacksLeaseError(LacksError):
    """Missing fact: whether a Spark consumer is alive, because its lease has been watched for too short a time."""


@dataclass(frozen=True)
class LacksBrokerError(LacksError):
    """Missing fact: whether the owning broker is dead, and its cursor records are in the cursors table.

    Attributes:
        incarnation: The owning broker's incarnation.
    """

    incarnation: IncarnationId


@dataclass(frozen=True)
class LacksHolesError(LacksError):
    """Missing fact: the messages that faster slots have read beyond the slowest slot's position.

    Attributes:
        type: The subscription's current type, which Spark's consumers use.
        positions: The next entry that each slot reads, by slot number.
    """

    type: SubscriptionType
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Request:
    """A broker's request to acquire a subscription.

    Attributes:
        part: The topic.
        name: The subscription's name.
        type: The type that its consumers ask for; it replaces the type of a subscription without consumers.
        start: The start of a new subscription.
        end: The topic's end, at which a new subscription with the start "latest" begins.
        incarnation: The incarnation that acquires the subscription.
        properties: Properties that are stored with a new subscription.
        now: The current time (UTC), stored as the creation time of a new subscription.
        most: Maximum number of subscriptions of the topic, checked for a new subscription; 0 for no limit.
    """

    part: TopicPart
    name: str
    type: SubscriptionType
    start: InitialPosition
    end: Position
    incarnation: IncarnationId
    properties: Mapping[str, str]
    now: datetime
    most: int = 0


@dataclass(frozen=True, slots=True)
class Ownership:
    """A broker's ownership of a subscription, under one epoch.

    Attributes:
        part: The topic.
        name: The subscription's name.
        incarnation: The owning broker's incarnation.
        epoch: The epoch that the subscription record gave this ownership.
    """

    part: TopicPart
    name: str
    incarnation: IncarnationId
    epoch: int


@dataclass(slots=True)
class Facts:
    """The facts that are known for a decision.

    Attributes:
        states: Lease states of the Spark consumers that read the topic under the subscription, by consumer name.
        saved: Ids of CLOSED incarnations whose cursor records are in the cursors table.
        positions: The positions, by slot number, for which `beyond` was computed; empty before that.
        beyond: The messages that faster slots have read beyond the slowest of `positions`.
    """

    states: Mapping[str, LeaseState] = field(default_factory=dict)
    saved: Collection[str] = ()
    positions: Mapping[int, Position] = field(default_factory=lambda: _NO_POSITIONS)
    beyond: AckHoles = field(default_factory=AckHoles)


def decide_open(view: View, cursors: Cursors, request: Request, facts: Facts) -> tuple[Change, CursorRecord]:
    """Decide to create or take a subscription; return the change to commit, and its cursor's first record.

    Args:
        view: The current metadata.
        cursors: The rows of the cursors table, durable and read after the view.
        request: The subscription to acquire.
        facts: The facts that are known.

    Raises:
        LacksError: a fact is missing.
        ConsumerBusyError: a live Spark consumer reads the subscription.
        TopicNotFoundError: the topic was deleted.
        JournalFencedError: the requesting incarnation has ended.
        ServerRefusalError: the topic has reached its limit of subscriptions.
    """
    mine = view.get(IncarnationRecord, request.incarnation)
    if mine is None or mine.state != "OPEN":
        raise JournalFencedError(f"Incarnation {request.incarnation} was taken over: restart this broker.")
    _require_topic(view, request.part)
    record = view.get(SubscriptionRecord, f"{request.part.topic_id}/{request.name}")
    if record is None:
        return _created(view, request)
    rows = cursors.of(record.topic_id, record.name)
    if record.face == "broker":
        owner = record.owners[0].consumer or ""
        if owner != request.incarnation and not _is_saved(view, owner, facts):
            raise LacksBrokerError(IncarnationId(owner))
        # If this incarnation is the owner, an open or a release did not complete: the journal has no record of it.
        start = broker_cursor(record, rows, ()).begun(next_epoch(record))
    else:
        _require_no_consumer(record, request, facts)
        positions = current_positions(record, rows)
        if len(set(positions.values())) > 1 and positions != facts.positions:
            raise LacksHolesError(record.type, positions)
        beyond = facts.beyond if positions == facts.positions else AckHoles()
        record, start = take_from_spark(record, rows, beyond, request.incarnation)
    taken = _owned(record, request.type, request.incarnation, start.epoch, start.mark_delete)
    return Change(puts=[taken], keys={_key(record): None}), start


def decide_reset(view: View, ownership: Ownership, position: Position) -> tuple[Change, SubscriptionRecord]:
    """Decide to begin a new epoch at a position, or at the trim floor if this is later.

    Args:
        view: The current metadata.
        ownership: The subscription as the broker owns it.
        position: The next entry to read.

    Returns:
        The change to commit, and the subscription's new record.

    Raises:
        ConsumerFencedError: this broker no longer owns the subscription.
        SubscriptionNotFoundError: the subscription was deleted.
    """
    record = require_ours(view, ownership)
    start, epoch = max(position, trim_floor(view, ownership.part.topic_id)), next_epoch(record)
    owned = _owned(record, record.type, ownership.incarnation, epoch, start)
    reset = owned.model_copy(
        update={
            "start_ledger": start.ledger,
            "start_entry": start.entry,
            "start_epoch": epoch,
            "holes_since_epoch": None,
        }
    )
    return Change(puts=[reset], keys={keys.topic(ownership.part.name): None, _key(record): None}), reset


def decide_type(view: View, ownership: Ownership, type_: SubscriptionType) -> Change:
    """Return the change to commit for a subscription's new type; the caller has disconnected the old type's consumers.

    Raises the errors of `decide_reset`.
    """
    record = require_ours(view, ownership)
    owner = record.owners[0]
    start = Position(LedgerId(owner.start_ledger), EntryId(owner.start_entry))
    return Change(puts=[_owned(record, type_, ownership.incarnation, owner.epoch, start)], keys={_key(record): None})


def decide_release(view: View, ownership: Ownership, last: CursorRecord) -> Change:
    """Return the change to commit that releases a subscription, so that Spark or a broker can take it.

    Raises the errors of `decide_reset`.

    Args:
        view: The current metadata.
        ownership: The subscription as the broker owns it.
        last: The cursor's last record, which is durable in the cursors table.
    """
    record = require_ours(view, ownership)
    return Change(puts=[give_to_spark(record, last)], keys={_key(record): None})


def decide_delete(view: View, ownership: Ownership) -> Change:
    """Return the change to commit that deletes a subscription (errors as `decide_reset`)."""
    record = require_ours(view, ownership)
    return Change(deletes=[record], keys={keys.topic(ownership.part.name): None, _key(record): None})


def trim_floor(view: View, topic_id: str) -> Position:
    """Return the position of a topic's first entry that was not trimmed; cursors are never set before it.

    For a compacted topic this is EARLIEST, because trimmed entries are in the compacted ledger.
    """
    if view.get(CompactionRecord, topic_id) is not None:
        return EARLIEST
    ledger, segment = view.oldest(LedgerRecord, topic_id), view.oldest(SegmentRecord, topic_id)
    if ledger is None:
        return EARLIEST
    trimmed = segment.first_entry if segment is not None and segment.ledger_id == ledger.ledger_id else 0
    return Position(LedgerId(ledger.ledger_id), EntryId(trimmed))


def require_room(topic: str, there: int, most: int) -> None:
    """Check that a topic with `there` subscriptions may get another one.

    Args:
        topic: The topic's full name, for the error.
        there: The current number of subscriptions.
        most: The limit; 0 for no limit.

    Raises:
        ServerRefusalError: the limit is reached.
    """
    if 0 < most <= there:
        raise ServerRefusalError(
            ServerError.ConsumerBusy,
            f"Topic {topic} has {there} subscriptions, its limit (max_subscriptions_per_topic): delete one or raise "
            "the limit.",
        )


def _created(view: View, request: Request) -> tuple[Change, CursorRecord]:
    topic_id = TopicId(request.part.topic_id)
    require_room(request.part.name, len(view.all(SubscriptionRecord, topic_id)), request.most)
    check_new_name("Subscription name", request.name)
    check_new_properties(f"Subscription {request.name!r}", request.properties)
    floor = trim_floor(view, topic_id)
    wanted = {"earliest": floor, "latest": request.end}
    start = max(wanted[request.start] if isinstance(request.start, str) else request.start, floor)
    before = view.last(SubscriptionRecord, f"{topic_id}/{request.name}")
    # The epoch is above all epochs of a deleted subscription of this name, whose cursor rows must not count.
    epoch = 1 if before is None else next_epoch(before)
    record = SubscriptionRecord(
        topic_id=topic_id,
        name=request.name,
        type=request.type,
        start_ledger=start.ledger,
        start_entry=start.entry,
        start_epoch=epoch,
        properties=dict(request.properties),
        created_at=request.now,
    )
    owned = _owned(record, request.type, request.incarnation, epoch, start)
    moved = {keys.topic(request.part.name): None, _key(record): None}
    return Change(puts=[owned], keys=moved), CursorRecord("snapshot", topic_id, request.name, epoch, NO_RECORD, start)


def _require_no_consumer(record: SubscriptionRecord, request: Request, facts: Facts) -> None:
    """Raise if a Spark consumer is alive. A consumer without slots counts too, because it is about to take some."""
    owners = {owner.consumer for owner in record.owners if owner.consumer is not None}
    states = dict.fromkeys(owners, LeaseState.EXPIRED) | dict(facts.states)
    alive = sorted(name for name, state in states.items() if state is LeaseState.ALIVE)
    if alive:
        raise ConsumerBusyError(
            f"Subscription {record.name!r} on {request.part.name} is being read by Spark, consumer {alive[0]!r}: stop "
            "that query, or use another subscription."
        )
    if LeaseState.UNKNOWN in states.values():
        raise LacksLeaseError


def _is_saved(view: View, incarnation: str, facts: Facts) -> bool:
    """Return True if an incarnation's cursors are in the cursors table.

    The incarnation's record is deleted only after that, so a missing record also means True.
    """
    return incarnation in facts.saved or view.get(IncarnationRecord, incarnation) is None


def _require_topic(view: View, part: TopicPart) -> None:
    topic = view.get(TopicRecord, part.name)
    if topic is None or topic.topic_id != part.topic_id:
        raise TopicNotFoundError(f"Topic {part.name} was deleted: look it up again.")


def require_ours(view: View, ownership: Ownership) -> SubscriptionRecord:
    """Check that the broker still owns a subscription, and return its record (errors as `decide_reset`)."""
    record = view.get(SubscriptionRecord, f"{ownership.part.topic_id}/{ownership.name}")
    if record is None:
        raise SubscriptionNotFoundError(
            f"Subscription {ownership.name!r} on {ownership.part.name} was deleted while it had consumers: subscribe "
            "again."
        )
    owner = (record.owners[0].consumer, record.owners[0].epoch) if record.owners else None
    if record.face != "broker" or owner != (ownership.incarnation, ownership.epoch):
        raise ConsumerFencedError(
            f"Subscription {ownership.name!r} on {ownership.part.name} was taken by another owner: subscribe again."
        )
    return record


def _owned(
    record: SubscriptionRecord, type_: SubscriptionType, incarnation: IncarnationId, epoch: int, start: Position
) -> SubscriptionRecord:
    if type_ != record.type:
        record = retyped(record, type_, start, epoch)
    owner = SlotOwner(
        consumer=incarnation,
        epoch=epoch,
        start_ledger=start.ledger,
        start_entry=start.entry,
        slots=tuple(slots_of(type_)),
    )
    return record.model_copy(update={"face": "broker", "owners": (owner,)})


def _key(record: SubscriptionRecord) -> str:
    return keys.subscription(record.topic_id, record.name)
