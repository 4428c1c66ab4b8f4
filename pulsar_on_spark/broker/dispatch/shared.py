"""Shared: round-robin over consumers with permits, a few messages per turn; redeliveries come first."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import Final

from pulsar_on_spark.broker.dispatch.consumer import Consumer
from pulsar_on_spark.broker.dispatch.limits import DispatchLimits
from pulsar_on_spark.broker.dispatch.pool import PoolDispatcher
from pulsar_on_spark.broker.dispatch.replay import ANYONE, Line
from pulsar_on_spark.broker.dispatch.values import ActiveConsumerChanged, ConsumerId, ConsumerInfo, EntryInfo
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor

MAX_CHUNKED_MESSAGES: Final = 10_000
"""Maximum number of incomplete chunked messages whose consumer is tracked. Above this limit the oldest message is
forgotten, and a client that gets only some chunks of a message returns them."""


class SharedDispatcher(PoolDispatcher):
    """The dispatcher of Shared. Consumers with the lowest priority number get all entries while they have permits.

    The chunks of a message go to one consumer. An entry's group is the id of the consumer that has the message's other
    chunks, or 0.
    """

    def __init__(self, cursor: Cursor, limits: DispatchLimits) -> None:
        super().__init__(cursor, limits)
        self._levels: list[deque[Consumer]] = []
        """The consumers of each priority level, lowest number first; in a level, the next consumer in turn is first."""
        self._turn: Consumer | None = None
        self._turn_left = 0
        self._chunks: dict[str, ConsumerId] = {}

    def add_consumer(self, info: ConsumerInfo, now_ms: int) -> list[ActiveConsumerChanged]:
        """Add a consumer, last in turn at its priority level; return no notices."""
        effects = super().add_consumer(info, now_ms)
        self._form_levels()
        return effects

    def remove_consumer(self, consumer: ConsumerId, now_ms: int) -> list[ActiveConsumerChanged]:
        """Remove a consumer, whose entries go to the others; return no notices."""
        self._chunks = {uuid: owner for uuid, owner in self._chunks.items() if owner != consumer}
        effects = super().remove_consumer(consumer, now_ms)
        self._form_levels()
        return effects

    def restart_reading(self) -> None:
        """Restart reading at the mark-delete position, and forget the consumers of chunked messages."""
        super().restart_reading()
        self._chunks.clear()

    # --------------------------------------------------------------------------------------------------------------

    def _group_of(self, info: EntryInfo) -> int:
        return self._chunks.get(info.chunk.uuid, 0) if info.chunk is not None else 0

    def _group_of_returned(self, group: int) -> int:
        return 0  # the consumer of the other chunks is looked up when the entry is read again

    def _line_of(self, group: int) -> Line:
        return group if group in self._consumers else ANYONE

    def _begin_offer(self) -> None:
        self._turn = None

    def _choose(self, info: EntryInfo, group: int) -> Consumer | None:
        if group:
            consumer = self._consumers[ConsumerId(group)]
            if not consumer.is_available:
                return None
        else:
            consumer = self._next_in_turn()
            self._turn_left -= info.messages
        chunk = info.chunk
        if chunk is not None:
            if chunk.number == chunk.total - 1:
                self._chunks.pop(chunk.uuid, None)
            elif not group:
                self._chunks[chunk.uuid] = consumer.info.id
                if len(self._chunks) > MAX_CHUNKED_MESSAGES:
                    del self._chunks[next(iter(self._chunks))]
        return consumer

    def _next_in_turn(self) -> Consumer:
        turn = self._turn
        if turn is not None and self._turn_left > 0 and turn.is_available:
            return turn
        for level in self._levels:
            for _ in range(len(level)):
                consumer = level[0]
                level.rotate(-1)
                if consumer.is_available:
                    self._turn = consumer
                    self._turn_left = self._limits.dispatcher_max_round_robin_batch_size
                    return consumer
        raise AssertionError("no consumer is available")

    def _form_levels(self) -> None:
        """Rebuild the priority levels: known consumers keep their order, and new ones are appended."""
        kept = [consumer for level in self._levels for consumer in level if consumer.info.id in self._consumers]
        known = {consumer.info.id for consumer in kept}
        kept += [consumer for consumer in self._consumers.values() if consumer.info.id not in known]
        kept.sort(key=lambda consumer: consumer.info.priority)
        self._levels = [deque(level) for _, level in groupby(kept, key=lambda consumer: consumer.info.priority)]
