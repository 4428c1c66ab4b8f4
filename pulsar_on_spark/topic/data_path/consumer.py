"""A streaming query's consumer of a subscription: it reads metadata, cursors and leases, by which `ownership` decides.

There is one consumer for each streaming query and process. The Spark reader calls `admit_batch` before it replays a
batch, `decide_turn` for each new batch, and `acknowledge` when Spark has committed a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import CursorRow, Cursors
from pulsar_on_spark.metadata.records import SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import SubscriptionNotFoundError
from pulsar_on_spark.model.ids import IncarnationId, TopicId
from pulsar_on_spark.model.lease_state import LeaseState
from pulsar_on_spark.topic.catalog.catalog import TopicPart
from pulsar_on_spark.topic.catalog.leases import LeaseKeeper, LeaseWatcher
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.managed_ledger.cursor.handover import broker_cursor, give_to_spark
from pulsar_on_spark.topic.managed_ledger.incarnation.dead_cursors import DeadOwners
from pulsar_on_spark.topic.managed_ledger.subscription import ownership, positions
from pulsar_on_spark.topic.managed_ledger.subscription.offsets import StreamOffset
from pulsar_on_spark.topic.managed_ledger.subscription.ownership import (
    Action,
    Fenced,
    Refuse,
    Situation,
    Standby,
    SubscriptionType,
)
from pulsar_on_spark.topic.managed_ledger.subscription.subscriptions import retyped

log = logging.getLogger(__name__)

CURSOR_INTERVAL_S = 1.0
"""Shortest interval between two saved moves of a cursor, as in Pulsar; `acknowledge(now=True)` ignores it."""
_WAIT_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Turn:
    """Outcome of one decision about slots, and the view that the decision was made on.

    Attributes:
        view: The metadata.
        actions: The actions in each topic, by full name.
        changed: The records to commit for the actions.
    """

    view: View
    actions: Mapping[str, tuple[Action, ...]]
    changed: tuple[SubscriptionRecord, ...]

    @property
    def standing_by(self) -> bool:
        """True if this consumer owns no slot of any topic."""
        return all(isinstance(action, Standby) for actions in self.actions.values() for action in actions)


class SubscriptionConsumer:
    """One consumer of a subscription on any number of topics. Not thread-safe."""

    def __init__(
        self,
        root: RootHandle,
        name: str,
        type_: SubscriptionType,
        consumer: str,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = root.store
        self._name = name
        self._type = type_
        self._consumer = consumer
        self._lease_s = lease_s
        self._clock = clock
        self._keeper = LeaseKeeper(root.consumer_leases(name), consumer, lease_s)
        self._watcher = LeaseWatcher(root.consumer_leases(name), clock)
        self._brokers = DeadOwners(root, clock)
        self._holders: dict[str, LeaseState] = {}
        """The lease states of brokers that own the subscription on some topic."""
        self._started = False
        self._finishing = False
        self._may_expire = True
        """True if the subscription may expire or its records were not read yet: `stop` then keeps the lease, whose age
        shows the last use."""
        self._held: dict[str, dict[int, int]] = {}
        self._saved: tuple[StreamOffset, dict[str, dict[int, int]]] | None = None
        self._saved_at_s = float("-inf")
        self._moves = 0

    @property
    def is_reading(self) -> bool:
        """True if this process owns slots."""
        return any(self._held.values())

    def admit_batch(self, parts: Sequence[TopicPart], offset: StreamOffset) -> None:
        """Check that a batch that Spark logged but did not commit may run now; wait at most two lease durations.

        Raises:
            ConsumerBusyError: another live consumer owns the subscription.
            ConsumerFencedError: the cursor was reset since the batch was planned.
            SubscriptionNotFoundError: the subscription was deleted since the batch was planned.
        """
        self._join(parts)
        deadline_s = self._clock() + 2 * self._lease_s
        while True:
            self._watcher.observe_leases()
            turn = self._decided(self._freed(self._store.view(durable=True), parts), parts, offset)
            standing_by = any(Standby() in actions for actions in turn.actions.values())
            waiting = standing_by and (self._type == "Exclusive" or LeaseState.UNKNOWN in self._holders.values())
            if not waiting or self._clock() > deadline_s:
                return
            time.sleep(_WAIT_STEP_S)

    def decide_turn(
        self,
        view: View,
        parts: Sequence[TopicPart],
        committed: StreamOffset,
        *,
        wait: bool = False,
        finishing: bool = False,
    ) -> Turn:
        """Decide which slots of which topics are read next, and from which positions; commit changes of owners.

        Args:
            view: A durable view. If a slot changes its owner, the decision is repeated on a newer view.
            parts: The topics.
            committed: The offset that Spark has committed.
            wait: True to wait, at most two lease durations, while this consumer owns no slot and it is unknown if the
                other owners are alive; False to stand by at once.
            finishing: As in `Situation`.

        Raises:
            ConsumerBusyError, ConsumerFencedError, SubscriptionNotFoundError: this consumer must stop.
        """
        self._join(parts)
        self._finishing = finishing
        deadline_s = self._clock() + 2 * self._lease_s
        while True:
            self._watcher.observe_leases()
            view = self._freed(view, parts)
            turn = self._decided(view, parts, committed)
            if turn.changed:
                turn = self._commit(parts, committed)
            # If no slot changes its owner, the records are still those with which this process acquired its slots.
            self._held = {name: ownership.held_after(actions) for name, actions in turn.actions.items()}
            unknown = wait and turn.standing_by and self._owners_unknown(turn.view, parts)
            if not unknown or self._clock() > deadline_s:
                return turn
            time.sleep(_WAIT_STEP_S)
            view = self._store.view(durable=True)

    def acknowledge(self, committed: StreamOffset, *, now: bool = False) -> None:
        """Save the offset that Spark has committed as the cursors' positions, at most once a second unless `now`.

        Raises:
            MetadataError: the positions could not be made durable; the next call tries again.
        """
        if self._saved == (committed, self._held) or not self.is_reading:
            return
        if now or self._clock() - self._saved_at_s >= CURSOR_INTERVAL_S:
            self._save(committed)

    def stop(self, parts: Sequence[TopicPart], committed: StreamOffset | None) -> None:
        """Release all slots, with the committed offset as their position, and release the lease.

        If `committed` is None, because Spark has committed no offset, only the lease is released.
        """
        if not self._started:
            return
        try:
            if committed is not None and self.is_reading:
                # The position is committed with the release of the slots.
                self._store.commit(lambda view: self._given_back(view, parts, committed))
        finally:
            self._keeper.stop(keep=self._may_expire)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decided(self, view: View, parts: Sequence[TopicPart], committed: StreamOffset) -> Turn:
        """Decide on this view. The cursors are read after the records, as `current_positions` requires."""
        records = {part: self._stored(view, part) for part in parts}
        self._may_expire = any(record.expires_after_s is not None for record in records.values())
        cursors = self._store.cursors()
        actions: dict[str, tuple[Action, ...]] = {}
        changed = []
        for part, stored in records.items():
            record = self._typed(stored, part, cursors)
            actions_of_part = self._decide(record, cursors, part, committed)
            for action in actions_of_part:
                if isinstance(action, Refuse | Fenced):
                    raise action.error()
            if part.topic_id not in self._keeper.topics:
                # The lease could not be written: other consumers see none on this topic and would take over the slots.
                record, actions_of_part = stored, (Standby(),)
            actions[part.name] = actions_of_part
            after = ownership.apply(record, actions_of_part)
            if after is not stored:
                changed.append(after)
        return Turn(view, actions, tuple(changed))

    def _commit(self, parts: Sequence[TopicPart], committed: StreamOffset) -> Turn:
        """Decide on a fresh view, and commit changes of owners; repeat both if another consumer was faster."""
        found: Turn | None = None

        def decide(view: View) -> Change | None:
            nonlocal found
            found = self._decided(view, parts, committed)
            return self._change(found.changed)

        view = self._store.commit(decide)
        assert found is not None, "a commit decides at least once"
        return Turn(view, found.actions, found.changed)

    def _given_back(self, view: View, parts: Sequence[TopicPart], committed: StreamOffset) -> Change | None:
        """Return the change that releases all slots at the committed positions; None if this consumer owns none."""
        cursors = self._store.cursors()
        changed = []
        for part in parts:
            stored = view.get(SubscriptionRecord, self._record_id(part))
            if stored is not None and stored.type == self._type:
                after = ownership.apply(stored, self._decide(stored, cursors, part, committed, stopping=True))
                if after is not stored:
                    changed.append(after)
        return self._change(changed)

    def _decide(
        self,
        record: SubscriptionRecord,
        cursors: Cursors,
        part: TopicPart,
        committed: StreamOffset,
        *,
        stopping: bool = False,
    ) -> tuple[Action, ...]:
        rows = cursors.of(part.topic_id, self._name)
        topic = committed.topics.get(part.name)
        return ownership.decide(
            Situation(
                consumer=self._consumer,
                type=self._type,
                topic=part.name,
                record=record,
                cursor=positions.current_positions(record, rows),
                others=self._lease_states(part),
                held=self._held.get(part.name, {}),
                committed=topic if topic is not None and topic.topic_id == part.topic_id else None,
                stopping=stopping,
                finishing=self._finishing,
                holder=self._holders.get(record.owners[0].consumer or "", LeaseState.ALIVE)
                if record.face == "broker"
                else LeaseState.ALIVE,
            )
        )

    def _freed(self, view: View, parts: Sequence[TopicPart]) -> View:
        """Release the subscription on topics where a dead broker owns it; return a view in which it is released.

        Raises:
            JournalUndecidedError, CorruptCursorError: a dead broker's journal cannot be read now.
        """
        records = {part: view.get(SubscriptionRecord, self._record_id(part)) for part in parts}
        owners = {
            IncarnationId(record.owners[0].consumer or "")
            for record in records.values()
            if record is not None and record.face == "broker"
        }
        self._holders = {owner: self._brokers.save_dead_cursors(owner) for owner in owners}
        dead = {owner for owner, state in self._holders.items() if state is LeaseState.EXPIRED}
        if not dead:
            return view

        def decide(view: View) -> Change | None:
            cursors = self._store.cursors(durable=True)
            freed = []
            for part in parts:
                record = view.get(SubscriptionRecord, self._record_id(part))
                if record is not None and record.face == "broker" and record.owners[0].consumer in dead:
                    # `save_dead_cursors` has copied the broker's position to the table.
                    rows = cursors.of(record.topic_id, record.name)
                    freed.append(give_to_spark(record, broker_cursor(record, rows, ())))
            return self._change(freed)

        return self._store.commit(decide)

    def _change(self, changed: Sequence[SubscriptionRecord]) -> Change | None:
        """Return the change that stores these subscription records; None if there are none."""
        if not changed:
            return None
        moved: dict[str, int | None] = {keys.subscription(record.topic_id, self._name): None for record in changed}
        return Change(puts=changed, keys=moved)

    # -- known lease states ------------------------------------------------------------------------------------------

    def _join(self, parts: Sequence[TopicPart]) -> None:
        """Write the topics to the lease. `_decided` acquires no slots in topics that the lease does not name."""
        ids = [TopicId(part.topic_id) for part in parts]
        if self._started:
            self._keeper.hold(ids)
        else:
            self._keeper.start(ids)
            self._started = True

    def _record_id(self, part: TopicPart) -> str:
        return f"{part.topic_id}/{self._name}"

    def _stored(self, view: View, part: TopicPart) -> SubscriptionRecord:
        record = view.get(SubscriptionRecord, self._record_id(part))
        if record is None:
            former = view.last(SubscriptionRecord, self._record_id(part))
            comes_back = former is not None and former.expires_after_s is not None
            remedy = "restart the query" if comes_back else "restart the query with a new checkpointLocation"
            raise SubscriptionNotFoundError(
                f"Subscription {self._name!r} on {part.name} was deleted under this query: {remedy}."
            )
        return record

    def _typed(self, record: SubscriptionRecord, part: TopicPart, cursors: Cursors) -> SubscriptionRecord:
        """Return the record, with this consumer's type if no other consumer is alive, as in Pulsar."""
        if record.type == self._type or record.face == "broker":
            return record
        if self._owner_states(record, part) - {LeaseState.EXPIRED}:
            return record
        return retyped(record, cursors, self._type)

    def _lease_states(self, part: TopicPart) -> Mapping[str, LeaseState]:
        states = self._watcher.lease_states(TopicId(part.topic_id))
        return {name: state for name, state in states.items() if name != self._consumer}

    def _owner_states(self, record: SubscriptionRecord, part: TopicPart) -> set[LeaseState]:
        """Return the lease states of the other consumers that own slots; EXPIRED for an owner without a lease."""
        states = self._lease_states(part)
        owners = {owner.consumer for owner in record.owners} - {None, self._consumer}
        return {states.get(owner or "", LeaseState.EXPIRED) for owner in owners}

    def _owners_unknown(self, view: View, parts: Sequence[TopicPart]) -> bool:
        if LeaseState.UNKNOWN in self._holders.values():
            return True
        return any(LeaseState.UNKNOWN in self._owner_states(self._stored(view, part), part) for part in parts)

    # -- cursors ---------------------------------------------------------------------------------------------------

    def _save(self, committed: StreamOffset) -> None:
        rows: list[CursorRow] = []
        view = self._store.view()
        cursors = self._store.cursors()
        for name, ranges in self._held.items():
            topic = committed.topics.get(name)
            record = None if topic is None else view.get(SubscriptionRecord, f"{topic.topic_id}/{self._name}")
            if topic is None or record is None:
                continue
            rows_stored = cursors.of(record.topic_id, self._name)
            cursor = positions.current_positions(record, rows_stored)
            self._moves += 1
            rows += positions.cursor_moves(record, cursor, ranges, topic, self._moves)
        self._saved_at_s = self._clock()
        self._store.append_cursors(rows)
        self._saved = (committed, dict(self._held))
