"""Key_Shared: each key is delivered in order, to one consumer at a time.

Two rules keep the order while consumers subscribe and leave:

* A slot of keys is *held* by the consumer that has unacknowledged entries of the slot. Until the holder has
  acknowledged or returned these entries, no other consumer gets an entry of the slot, even if the slot was assigned to
  it meanwhile (Pulsar's draining hashes).
* No entry is delivered while an earlier one of its slot waits.

Entries that cannot be delivered wait in the replay queue (`replay.py`), and reading continues up to the look-ahead
limit. While a slot waits for its holder, its entries wait in the line numbered minus the slot, from which no consumer
takes entries.
"""

from __future__ import annotations

from collections import Counter

from pulsar_on_spark.broker.dispatch.consumer import Consumer
from pulsar_on_spark.broker.dispatch.keys import KeySplit, key_split
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.pool import PoolDispatcher
from pulsar_on_spark.broker.dispatch.replay import Line
from pulsar_on_spark.broker.dispatch.values import (
    ActiveConsumerChanged,
    ConsumerId,
    ConsumerInfo,
    EntryInfo,
    KeySharedPolicy,
)
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor


class KeySharedDispatcher(PoolDispatcher):
    """The dispatcher of Key_Shared: an entry's group is its slot, which belongs to one consumer."""

    def __init__(self, cursor: Cursor, limits: DispatchLimits, policy: KeySharedPolicy) -> None:
        super().__init__(cursor, limits)
        self._split: KeySplit = key_split(policy)
        self._in_order = not policy.allow_out_of_order
        self._holders: dict[int, tuple[ConsumerId, int]] = {}
        """The holder of each held slot, and the number of the holder's unacknowledged entries of the slot."""

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer and move slots to it; return no notices (errors as `Dispatcher.add_consumer`)."""
        self._split.add(info)
        return super().add_consumer(info, now_ms)

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer, whose slots and entries go to the others; return no notices."""
        self._split.remove(consumer)
        return super().remove_consumer(consumer, now_ms)

    # --------------------------------------------------------------------------------------------------------------

    def _group_of(self, info: EntryInfo) -> int:
        return self._split.slot(info.key or b"")

    def _line_of(self, group: int) -> Line:
        target = self._split.consumer(group)
        if target is None or self._is_held_from(target, group):
            return -group
        return target

    def _choose(self, info: EntryInfo, group: int) -> Consumer | None:
        target = self._split.consumer(group)
        if target is None or self._is_held_from(target, group):
            return None
        consumer = self._consumers[target]
        return consumer if consumer.is_available else None

    def _note_delivered(self, consumer: Consumer, group: int) -> None:
        if self._in_order:
            holder, held = self._holders.get(group, (consumer.info.id, 0))
            assert holder == consumer.info.id, f"slot {group} is held by another consumer"
            self._holders[group] = (holder, held + 1)

    def _note_returned(self, consumer: Consumer, group: int) -> None:
        if not self._in_order:
            return
        holder, held = self._holders[group]
        if held > 1:
            self._holders[group] = (holder, held - 1)
            return
        del self._holders[group]
        line = self._line_of(group)
        if line > 0:
            self._replay.move(-group, line)

    def _is_held_from(self, target: ConsumerId, slot: int) -> bool:
        """Return True if a consumer other than `target` holds the slot."""
        holder = self._holders.get(slot)
        return holder is not None and holder[0] != target

    def _obstacle(self, consumer: Consumer) -> str | None:
        """Return the reason why a consumer gets no entries; None if it may get some.

        Among the consumer's slots that wait for another holder, the reason names the slot with the most entries.
        """
        obstacle = super()._obstacle(consumer)
        if obstacle is not None or not len(self._replay):
            return obstacle
        waiting: Counter[int] = Counter()
        for slot in self._holders:
            if self._split.consumer(slot) == consumer.info.id and self._is_held_from(consumer.info.id, slot):
                waiting[slot] = self._replay.waiting(slot)
        if not waiting.total():
            return None
        slot, entries = waiting.most_common(1)[0]
        holder, held = self._holders[slot]
        return (
            f"{waiting.total()} entries wait for other consumers to acknowledge: {entries} of key hash {slot}, which "
            f"{self._consumers[holder].info.name!r} holds with {held} unacknowledged entries"
        )
