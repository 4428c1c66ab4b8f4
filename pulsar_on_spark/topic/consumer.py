"""A consumer of a subscription: the shell that drives `ownership` with the metadata, cursors and leases.

One per streaming query and process. The Spark reader calls `admit` before it replays a batch, `turn` for each new one,
and `acknowledge` when Spark has committed one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from pulsar_on_spark.metadata import keys
from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.records import Record, SubscriptionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.metadata.store import Change
from pulsar_on_spark.model.errors import CommitConflictError, SubscriptionNotFoundError
from pulsar_on_spark.model.ids import Position, TopicId
from pulsar_on_spark.topic import ownership
from pulsar_on_spark.topic.catalog import TopicPart
from pulsar_on_spark.topic.leases import LeaseKeeper, LeaseWatcher, lease_directory
from pulsar_on_spark.topic.offsets import StreamOffset, TopicOffset
from pulsar_on_spark.topic.ownership import Action, Fenced, Refuse, Situation, Standby, Standing, SubscriptionType
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.slots import slots_of
from pulsar_on_spark.topic.subscriptions import retyped

log = logging.getLogger(__name__)

CURSOR_INTERVAL_S = 1.0
"""A cursor moves at most so often (Pulsar's own rate), and at once when there is nothing new to read."""
_WAIT_STEP_S = 0.1


class SubscriptionConsumer:
    """One consumer's part in a subscription on any number of topics. Not thread-safe."""

    def __init__(
        self,
        root: Root,
        name: str,
        type_: SubscriptionType,
        consumer: str,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory = lease_directory(root.path, name)
        self._root = root
        self._name = name
        self._type = type_
        self._consumer = consumer
        self._lease_s = lease_s
        self._clock = clock
        self._keeper = LeaseKeeper(directory, consumer, lease_s)
        self._watcher = LeaseWatcher(directory, clock)
        self._started = False
        self._held: dict[str, dict[int, int]] = {}
        self._unsaved: StreamOffset | None = None
        self._saved_at_s = float("-inf")
        self._moves = 0

    def admit(self, parts: Sequence[TopicPart], offset: StreamOffset) -> None:
        """Make sure that a batch which Spark logged but did not commit may run now; waits at most two lease periods.

        Raises:
            ConsumerBusyError: another live consumer has the subscription.
            ConsumerFencedError: the cursor was reset since.
        """
        self._join(parts)
        deadline_s = self._clock() + 2 * self._lease_s
        while True:
            self._watcher.observe()
            view = self._root.store.view(durable=True)
            actions = {part.name: self._decide(view, part, offset.topics.get(part.name)) for part in parts}
            _raise_if_stopped(actions)
            waiting = self._type == "Exclusive" and any(isinstance(a, Standby) for found in actions.values() for a in found)
            if not waiting or self._clock() > deadline_s:
                return
            time.sleep(_WAIT_STEP_S)

    def turn(self, parts: Sequence[TopicPart], committed: StreamOffset, *, wait: bool = False) -> dict[str, tuple[Action, ...]]:
        """Decide, and commit what changes: which slots of which topics are read next, and from where.

        Args:
            parts: the topics.
            committed: the offset that Spark has committed.
            wait: under Exclusive, wait out a predecessor's lease rather than stand by (at most two lease periods).

        Returns:
            The actions by topic name, committed.

        Raises:
            ConsumerBusyError, ConsumerFencedError: this consumer may not go on.
        """
        self._join(parts)
        deadline_s = self._clock() + 2 * self._lease_s
        while True:
            actions = self._turn_once(parts, committed)
            idle = all(isinstance(action, Standby) for found in actions.values() for action in found)
            if not (wait and idle and parts and self._type == "Exclusive") or self._clock() > deadline_s:
                return actions
            time.sleep(_WAIT_STEP_S)

    def _turn_once(self, parts: Sequence[TopicPart], committed: StreamOffset) -> dict[str, tuple[Action, ...]]:
        self._watcher.observe()
        actions: dict[str, tuple[Action, ...]] = {}

        def decide(view: View) -> Change | None:
            nonlocal actions
            actions = {part.name: self._decide(view, part, committed.topics.get(part.name)) for part in parts}
            _raise_if_stopped(actions)
            puts: list[Record] = []
            for part in parts:
                stored = _record(view, part, self._name)
                record = ownership.apply(self._typed(stored, part), actions[part.name])
                if record is not stored:
                    puts.append(record)
            moved: dict[str, int | None] = {
                keys.subscription(record.topic_id, self._name): None
                for record in puts
                if isinstance(record, SubscriptionRecord)
            }
            return Change(puts=puts, keys=moved) if puts else None

        self._root.store.commit(decide)
        self._held = {name: ownership.held_after(found) for name, found in actions.items()}
        return actions

    def acknowledge(self, committed: StreamOffset, *, now: bool = False) -> None:
        """Move the cursors to what Spark has committed: at most once a second, or `now`.

        A move that fails for a passing reason is made up by the next one.
        """
        self._unsaved = committed
        if now or self._clock() - self._saved_at_s >= CURSOR_INTERVAL_S:
            self._save(committed)

    def flush(self) -> None:
        """Make the newest acknowledged position durable."""
        if self._unsaved is not None:
            self._save(self._unsaved)

    def stop(self, parts: Sequence[TopicPart], committed: StreamOffset | None) -> None:
        """Give everything back at the committed position, and release the lease."""
        if not self._started:
            return
        try:
            self.flush()
            if committed is not None and self._held:
                self._give_back(parts, committed)
        finally:
            self._keeper.stop()

    def _give_back(self, parts: Sequence[TopicPart], committed: StreamOffset) -> None:
        def decide(view: View) -> Change | None:
            puts = []
            for part in parts:
                stored = view.get(SubscriptionRecord, f"{part.topic_id}/{self._name}")
                if stored is None or stored.type != self._type:
                    continue
                found = self._decide(view, part, committed.topics.get(part.name), stopping=True)
                record = ownership.apply(stored, found)
                if record is not stored:
                    puts.append(record)
            moved: dict[str, int | None] = {keys.subscription(r.topic_id, self._name): None for r in puts}
            return Change(puts=puts, keys=moved) if puts else None

        self._root.store.commit(decide)

    def _join(self, parts: Sequence[TopicPart]) -> None:
        ids = [TopicId(part.topic_id) for part in parts]
        if self._started:
            self._keeper.hold(ids)
        else:
            self._keeper.start(ids)
            self._started = True

    def _decide(
        self, view: View, part: TopicPart, committed: TopicOffset | None, *, stopping: bool = False
    ) -> tuple[Action, ...]:
        record = self._typed(_record(view, part, self._name), part)
        rows = self._root.store.cursors().of(part.topic_id, self._name)
        return ownership.decide(
            Situation(
                consumer=self._consumer,
                type=self._type,
                topic=part.name,
                record=record,
                cursor={slot: ownership.current_position(record, rows, slot) for slot in slots_of(record.type)},
                others=self._standings(part),
                held=self._held.get(part.name, {}),
                committed=committed,
                stopping=stopping,
            )
        )

    def _standings(self, part: TopicPart) -> Mapping[str, Standing]:
        found = self._watcher.standings(TopicId(part.topic_id))
        return {name: standing for name, standing in found.items() if name != self._consumer}

    def _typed(self, record: SubscriptionRecord, part: TopicPart) -> SubscriptionRecord:
        """With no live consumer left, the next one decides the subscription's type, as in Pulsar."""
        if record.type == self._type or record.face == "broker":
            return record
        live = {name for name, standing in self._standings(part).items() if standing is not Standing.RUN_OUT}
        if any(owner.consumer in live for owner in record.owners):
            return record
        return retyped(record, self._root.store.cursors(), self._type)

    def _save(self, committed: StreamOffset) -> None:
        rows: list[CursorRow] = []
        store = self._root.store
        view = store.view(durable=True)
        for name, held in self._held.items():
            topic = committed.topics.get(name)
            record = None if topic is None else view.get(SubscriptionRecord, f"{topic.topic_id}/{self._name}")
            if topic is None or record is None:
                continue
            known = store.cursors().of(record.topic_id, self._name)
            cursor = {slot: ownership.current_position(record, known, slot) for slot in slots_of(record.type)}
            self._moves += 1
            rows += ownership.cursor_moves(record, cursor, held, topic, self._moves)
        self._saved_at_s = self._clock()
        self._unsaved = None
        if rows:
            try:
                store.append_cursors(rows)
            except CommitConflictError as error:
                self._unsaved = committed
                log.warning("Cursor of subscription %r was not moved, the next batch makes up for it: %s", self._name, error)


def _record(view: View, part: TopicPart, name: str) -> SubscriptionRecord:
    record = view.get(SubscriptionRecord, f"{part.topic_id}/{name}")
    if record is None:
        raise SubscriptionNotFoundError(
            f"Subscription {name!r} on {part.name} was deleted under this query: restart it with a new checkpointLocation."
        )
    return record


def _raise_if_stopped(actions: Mapping[str, tuple[Action, ...]]) -> None:
    for found in actions.values():
        for action in found:
            if isinstance(action, Refuse | Fenced):
                raise action.error()
