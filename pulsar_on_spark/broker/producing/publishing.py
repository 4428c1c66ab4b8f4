"""The way of entries from connections into the journal, and of their receipts back.

    connection ── publish ──> topic's ledger open, journal has room? ── append ──> journal
                                  └── no: waits in the topic's queue             │ acknowledged, in order
    connection <── one write of receipts for each producer ── cache, chain ──────┘

Limits: bytes of all unacknowledged entries, entries of one connection, the journal's own limits, and the sealer's lag.
While any of these limits except that of a connection is exceeded, nothing is read from clients with producers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pulsar_on_spark.broker.producing.dedup import Verdict
from pulsar_on_spark.broker.producing.producer import Producer, Published
from pulsar_on_spark.broker.producing.sequence_ids import with_last_sequence_id
from pulsar_on_spark.broker.producing.topic_dedup import TopicDedup
from pulsar_on_spark.broker.reading.cache import EntryCache
from pulsar_on_spark.broker.runtime.peer import refusal_of_one_entry
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.ids import LedgerId, TopicId
from pulsar_on_spark.model.latencies import Latencies
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.replies import Receipts
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, settle_entries

log = logging.getLogger(__name__)

_NO_ID: Final = -1
"""Ledger and entry in the receipt of a duplicate, as in Pulsar."""


class PublishedTopic(Protocol):
    """The part of a topic that the publish path uses.

    Attributes:
        topic_id: The topic's id.
        incarnation: The incarnation whose journal stores the topic's entries.
        waiting: Runs that the journal has not accepted yet, in order.
        keeps_entries: True to cache stored entries in memory for consumers.
        dedup: The topic's deduplication; None if it is off.
        published: The topic's counters.
    """

    topic_id: TopicId
    incarnation: Incarnation
    waiting: deque[Waiting]
    keeps_entries: bool
    dedup: TopicDedup | None
    published: Published

    def need_ledger(self) -> None:
        """Open the topic's ledger, and then call `PublishPath.append_waiting`."""

    def on_ledger_grew(self, ledger: LedgerId, end: int) -> None:
        """Handle that the entries of the ledger before `end` are acknowledged, and readable."""


Waiting = tuple[Producer, int, Sent]
"""A run that the journal has not accepted yet: its producer, the first entry's number at this producer, and the run."""
_Context = tuple[PublishedTopic, Producer, Sent]
"""The context that the journal returns with the outcome of a run."""


class PublishPath:
    """The broker's publish path; the `EntrySink` of all its journals.

    Args:
        cache: The cache to which acknowledged entries are added.
        buffer_bytes: Limit of unacknowledged entries; above it, nothing is read from clients with producers.
        gate_changed: Called when reading from clients with producers stops or starts.
    """

    def __init__(self, cache: EntryCache, buffer_bytes: int, gate_changed: Callable[[], None]) -> None:
        self._cache = cache
        self._buffer_bytes = buffer_bytes
        self._gate_changed = gate_changed
        self._journals: Iterable[Incarnation] = ()
        self._blocked: dict[PublishedTopic, None] = {}
        """Topics whose entries wait for room in the journal."""
        self._is_lagging = False
        self._is_draining = False
        self._settled: asyncio.Future[None] | None = None
        self._pending = 0
        self._appended = self._journaled = 0
        self._probe: tuple[int, float, Published, int] | None = None
        """The entry that is being measured: number of appended entries up to it, start time, topic, and bytes."""
        self.latencies = Latencies()
        """Latencies from append to receipt; one entry at a time is measured."""
        self.pending_bytes = 0
        self.is_open = True
        """True while the broker reads from clients with producers."""

    def start(self, journals: Iterable[Incarnation]) -> None:
        """Start publishing to the broker's journals; iterating `journals` yields those that are open at that time."""
        self._journals = journals

    # -- to the journal ------------------------------------------------------------------------------------------------

    def publish_entries(self, topic: PublishedTopic, producer: Producer, sent: Sent) -> None:
        """Accept a producer's next run; the receipts follow after the entries are durable.

        The run has only one entry if the topic deduplicates.
        """
        if self._is_draining:
            return
        entries = len(sent.entries)
        self._pending += entries
        self.pending_bytes += _size_bytes(sent)
        topic.waiting.append((producer, producer.take_numbers(entries), sent))
        self.append_waiting(topic)
        if self.is_open and (self.pending_bytes >= self._buffer_bytes or not topic.incarnation.can_append):
            self._set_gate(False)

    def _append(
        self, incarnation: Incarnation, topic: PublishedTopic, producer: Producer, number: int, sent: Sent, now_ms: int
    ) -> None:
        if topic.dedup is not None:
            if producer.info.replication is None:
                sent = with_last_sequence_id(sent)
            verdict = topic.dedup.admit_entry(producer.info, sent)
            if verdict is not Verdict.NEW:
                self._settle(1, len(sent.entry))
                _answer_unstored(producer, number, sent, verdict)
                return
        # A marker has no messages, but counts as one row.
        rows = sent.num_messages or 1
        incarnation.append(topic.topic_id, rows, now_ms, sent.entries, (topic, producer, sent))
        if self._probe is None:
            self._probe = (self._appended + 1, time.perf_counter(), topic.published, len(sent.entries[0]))
        self._appended += len(sent.entries)

    def append_waiting(self, topic: PublishedTopic) -> None:
        """Append a topic's waiting entries while its ledger is open and the journal has room.

        A run is cut where the journal completes a group or has no more room.
        """
        waiting, incarnation = topic.waiting, topic.incarnation
        now_ms = current_ms()
        while waiting:
            producer, number, sent = waiting[0]
            if producer.is_closed:
                self._forget(*waiting.popleft())
            elif topic.topic_id not in incarnation.ledgers:
                topic.need_ledger()
                return
            elif not incarnation.can_append:
                self._blocked[topic] = None
                return
            else:
                waiting.popleft()
                if (fitting := incarnation.fitting(sent.entries)) < len(sent.entries):
                    sent, rest = sent.cut(fitting)
                    waiting.appendleft((producer, number + fitting, rest))
                self._append(incarnation, topic, producer, number, sent, now_ms)
        self._blocked.pop(topic, None)

    def drop_waiting(self, topic: PublishedTopic) -> None:
        """Drop a topic's waiting entries: its producers have been asked to reconnect, and send them again."""
        self._blocked.pop(topic, None)
        while topic.waiting:
            self._forget(*topic.waiting.popleft())

    def drop_closed(self, topic: PublishedTopic) -> None:
        """Drop the waiting entries of a topic's closed producers."""
        waiting = list(topic.waiting)
        topic.waiting.clear()
        topic.waiting.extend(item for item in waiting if not item[0].is_closed)
        for item in waiting:
            if item[0].is_closed:
                self._forget(*item)
        if not topic.waiting:
            self._blocked.pop(topic, None)
        self._open_if_room()

    def _forget(self, producer: Producer, number: int, sent: Sent) -> None:
        for each in range(number, number + len(sent.entries)):
            producer.answer(each, b"")
        self._settle(len(sent.entries), _size_bytes(sent))

    async def drain_entries(self) -> None:
        """Stop accepting entries, and wait until each accepted one has its receipt.

        Further entries are dropped: their clients are disconnected afterwards and send them again. Clients that are
        disconnected earlier would miss receipts and send stored entries twice.
        """
        self._is_draining = True
        if self._pending:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def _settle(self, entries: int, size_bytes: int) -> None:
        self._pending -= entries
        self.pending_bytes -= size_bytes
        if not self._pending and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # -- from the journal ----------------------------------------------------------------------------------------------

    def on_entries_acknowledged(self, runs: Sequence[Appended[_Context]]) -> None:
        """Cache durable entries, make them visible to consumers, and send producers their receipts."""
        settle_entries(runs)
        acknowledged = 0
        answered: dict[Producer, None] = {}
        groups: dict[PublishedTopic, _Group] = {}
        add = self._cache.add
        for ledger, first, entries, (topic, producer, sent) in runs:
            ledger_id, end = ledger.ledger_id, first + entries
            messages, size_bytes = sent.num_messages * entries, _size_bytes(sent)
            if topic.keeps_entries:
                add(ledger_id, first, sent.entries)
            if topic.dedup is not None:
                topic.dedup.on_entry_stored(producer.info, sent, ledger_id, end)
            if (group := groups.get(topic)) is None:
                group = groups[topic] = _Group()
            group.ends[ledger_id] = end
            group.messages += messages
            group.size_bytes += size_bytes
            producer.published.messages += messages
            producer.published.bytes += size_bytes
            step = sent.num_messages or 1
            receipts = Receipts(sent.sequence_id, step, sent.highest_sequence_id, ledger_id, first, entries)
            producer.receipts.append(receipts)
            answered[producer] = None
            acknowledged += entries
        for producer in answered:
            producer.acknowledge()
        now_ms = current_ms()
        for topic, group in groups.items():
            topic.published.last_ms = now_ms
            topic.published.messages += group.messages
            topic.published.bytes += group.size_bytes
            for ledger_id, end in group.ends.items():
                topic.on_ledger_grew(ledger_id, end)
        self._note_journaled(acknowledged)
        self._settle(acknowledged, sum(group.size_bytes for group in groups.values()))
        self._open_if_room()

    def _note_journaled(self, entries: int) -> None:
        self._journaled += entries
        if self._probe is not None and self._probe[0] <= self._journaled:
            _, since_s, published, size_bytes = self._probe
            took_s = time.perf_counter() - since_s
            self.latencies.observe(took_s)
            published.add_sample(took_s, size_bytes)
            self._probe = None

    def on_entries_unknown(self, runs: Sequence[Appended[_Context]]) -> None:
        """Disconnect the clients of entries with unknown outcome; they send them again to the topic's next owner."""
        settle_entries(runs)
        for _, _, entries, (_, producer, sent) in runs:
            self._settle(entries, _size_bytes(sent))
            producer.peer.close()

    # -- back-pressure -------------------------------------------------------------------------------------------------

    def on_journal_room(self) -> None:
        """Append waiting entries because a journal has room again."""
        for topic in list(self._blocked):
            self.append_waiting(topic)
        self._open_if_room()

    @property
    def is_lagging(self) -> bool:
        """True while producers are held back because sealing is behind by more than `sealing_lag_limit_mb`."""
        return self._is_lagging

    def set_lagging(self, is_lagging: bool) -> None:
        """Hold producers back while `is_lagging`: sealing is behind by more than `sealing_lag_limit_mb`."""
        self._is_lagging = is_lagging
        if is_lagging and self.is_open:
            log.warning("Sealing is behind by more than sealing_lag_limit_mb: producers are held back meanwhile.")
            self._set_gate(False)
        self._open_if_room()

    def _open_if_room(self) -> None:
        if self.is_open or self._is_lagging or self._blocked:
            return
        if all(journal.can_append for journal in self._journals) and self.pending_bytes * 2 <= self._buffer_bytes:
            self._set_gate(True)

    def _set_gate(self, is_open: bool) -> None:
        self.is_open = is_open
        self._gate_changed()


@dataclass(slots=True)
class _Group:
    """Entries of one topic that the journal acknowledged together.

    Attributes:
        messages: Number of their messages.
        size_bytes: The sum of their sizes.
        ends: The entry id after the last of these entries, by ledger.
    """

    messages: int = 0
    size_bytes: int = 0
    ends: dict[LedgerId, int] = field(default_factory=dict)


def _size_bytes(sent: Sent) -> int:
    return sum(map(len, sent.entries))


def _answer_unstored(producer: Producer, number: int, sent: Sent, verdict: Verdict) -> None:
    """Answer an entry that is not stored, because it is or may be a duplicate."""
    match verdict:
        case Verdict.DUPLICATE:
            receipt = Receipts(sent.sequence_id, 1, sent.highest_sequence_id, _NO_ID, _NO_ID, 1)
            producer.answer(number, replies.send_receipts(producer.info.producer_id, [receipt]))
            return
        case Verdict.UNDECIDED:
            code, why = ServerError.PersistenceError, "was sent before and has no outcome yet: send it again later"
        case _:
            code, why = (
                refusal_of_one_entry(producer.peer),
                "begins a batch whose first messages are stored: send only the others",
            )
    producer.refuse(number, sent.sequence_id, code, f"Message {sent.sequence_id} {why}.")
