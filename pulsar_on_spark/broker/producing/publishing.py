"""The way of entries from connections into the journal, and of their receipts back.

    connection ── publish ──> topic's ledger open, journal has room? ── append ──> journal
                                  └── no: waits in the topic's queue             │ acknowledged, in order
    connection <── one write of receipts for each producer ── cache, chain ──────┘

Bounds: bytes of all entries that are not acknowledged, entries of one connection, the journal's own limits and the
sealer's lag. Above any of the first and the last two nothing is read from clients with producers until it is below.
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
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.managed_ledger.incarnation.incarnation import Incarnation
from pulsar_on_spark.topic.managed_ledger.incarnation.open_ledger import Appended, settle_entries

log = logging.getLogger(__name__)

_NO_ID: Final = -1
"""Ledger and entry in the receipt of an entry that was stored before."""


class PublishedTopic(Protocol):
    """A topic as the publish path sees it.

    Attributes:
        topic_id: Its id.
        incarnation: The incarnation whose journal takes its entries.
        waiting: Entries that the journal has not taken yet, in order.
        keeps_entries: Whether somebody will want entries from memory.
        dedup: Detects stored entries; None if deduplication is off.
        published: How much was published.
    """

    topic_id: TopicId
    incarnation: Incarnation
    waiting: deque[Waiting]
    keeps_entries: bool
    dedup: TopicDedup | None
    published: Published

    def need_ledger(self) -> None:
        """Open the topic's ledger, and call `PublishPath.resume` then."""

    def grew(self, ledger: LedgerId, end: int) -> None:
        """Note that entries of the ledger are acknowledged up to `end`."""


Waiting = tuple[Producer, int, Sent]
"""An entry that the journal has not taken yet, and its number of its producer's."""
_Context = tuple[PublishedTopic, Producer, Sent]
"""The context that the journal returns with an entry's outcome."""


class PublishPath:
    """The broker's publish path; the `EntrySink` of all its journals.

    Args:
        cache: Takes acknowledged entries.
        buffer_bytes: Of entries that are not acknowledged: above it, nothing is read from clients with producers.
        gate_changed: Called when that begins and ends.
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
        """One of the entries in the journal: the number appended up to it, the time, its counters, and its bytes."""
        self.latencies = Latencies()
        """From when an entry was appended until its receipt was written; one entry at a time is measured."""
        self.pending_bytes = 0
        self.is_open = True
        """True if clients with producers may be read."""

    def start(self, journals: Iterable[Incarnation]) -> None:
        """Begin with the open journals; others may follow."""
        self._journals = journals

    # -- to the journal ------------------------------------------------------------------------------------------------

    def publish(self, topic: PublishedTopic, producer: Producer, sent: Sent) -> None:
        """Take the next entry of one of a topic's producers; it gets its receipt once the entry is durable."""
        if self._is_draining:
            return
        number = producer.take()
        self._pending += 1
        self.pending_bytes += len(sent.entry)
        incarnation = topic.incarnation
        if topic.waiting or not incarnation.can_append or topic.topic_id not in incarnation.ledgers:
            topic.waiting.append((producer, number, sent))
            self.resume(topic)
        else:
            self._append(incarnation, topic, producer, number, sent, current_ms())
        if self.is_open and (self.pending_bytes >= self._buffer_bytes or not incarnation.can_append):
            self._set_gate(False)

    def _append(
        self, incarnation: Incarnation, topic: PublishedTopic, producer: Producer, number: int, sent: Sent, now_ms: int
    ) -> None:
        if topic.dedup is not None:
            if producer.info.replication is None:
                sent = with_last_sequence_id(sent)
            verdict = topic.dedup.admit(producer.info, sent)
            if verdict is not Verdict.NEW:
                self._settle(1, len(sent.entry))
                _answer_unstored(producer, number, sent, verdict)
                return
        # A marker has no messages, and is a row all the same.
        rows = sent.num_messages or 1
        incarnation.append(topic.topic_id, rows, now_ms, sent.entry, (topic, producer, sent))
        self._appended += 1
        if self._probe is None:
            self._probe = (self._appended, time.perf_counter(), topic.published, len(sent.entry))

    def resume(self, topic: PublishedTopic) -> None:
        """Append what waits in a topic, as far as its ledger is open and the journal has room."""
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
                self._append(incarnation, topic, producer, number, sent, now_ms)
        self._blocked.pop(topic, None)

    def drop_waiting(self, topic: PublishedTopic) -> None:
        """Forget the waiting entries of a topic: its producers are disconnected, and send them again."""
        self._blocked.pop(topic, None)
        while topic.waiting:
            self._forget(*topic.waiting.popleft())

    def drop_closed(self, topic: PublishedTopic) -> None:
        """Forget what waits in a topic of producers that are closed."""
        waiting = list(topic.waiting)
        topic.waiting.clear()
        topic.waiting.extend(each for each in waiting if not each[0].is_closed)
        for each in waiting:
            if each[0].is_closed:
                self._forget(*each)
        if not topic.waiting:
            self._blocked.pop(topic, None)
        self._open_if_room()

    def _forget(self, producer: Producer, number: int, sent: Sent) -> None:
        producer.answer(number, b"")
        self._settle(1, len(sent.entry))

    async def drain(self) -> None:
        """Accept nothing from now on, and wait until all accepted entries have their receipts.

        Later entries are ignored: their clients are about to be disconnected, and send them again. If they were
        disconnected first, they would miss the receipts, and send the entries twice.
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

    def on_entries_acknowledged(self, entries: Sequence[Appended[_Context]]) -> None:
        """Put durable entries into the cache, show them to consumers, and give producers their receipts."""
        settle_entries(entries)
        answered: dict[Producer, None] = {}
        groups: dict[PublishedTopic, _Group] = {}
        add = self._cache.add
        for ledger, entry_id, (topic, producer, sent) in entries:
            ledger_id = ledger.ledger_id
            entry = sent.entry
            if topic.keeps_entries:
                add(ledger_id, entry_id, entry)
            if topic.dedup is not None:
                topic.dedup.stored(producer.info, sent, ledger_id, entry_id + 1)
            if (group := groups.get(topic)) is None:
                group = groups[topic] = _Group()
            group.ends[ledger_id] = entry_id + 1
            group.messages += sent.num_messages
            group.size_bytes += len(entry)
            producer.published.messages += sent.num_messages
            producer.published.bytes += len(entry)
            producer.receipts.append((sent.sequence_id, sent.highest_sequence_id, ledger_id, entry_id))
            answered[producer] = None
        for producer in answered:
            producer.acknowledge()
        now_ms = current_ms()
        for topic, group in groups.items():
            topic.published.last_ms = now_ms
            topic.published.messages += group.messages
            topic.published.bytes += group.size_bytes
            for ledger_id, end in group.ends.items():
                topic.grew(ledger_id, end)
        self._note_journaled(len(entries))
        self._settle(len(entries), sum(group.size_bytes for group in groups.values()))
        self._open_if_room()

    def _note_journaled(self, entries: int) -> None:
        self._journaled += entries
        if self._probe is not None and self._probe[0] <= self._journaled:
            _, since_s, published, size_bytes = self._probe
            took_s = time.perf_counter() - since_s
            self.latencies.observe(took_s)
            published.sampled(took_s, size_bytes)
            self._probe = None

    def on_entries_unknown(self, entries: Sequence[Appended[_Context]]) -> None:
        """Disconnect the clients of entries that will have no outcome: they send them again, elsewhere or later."""
        settle_entries(entries)
        for _, _, (_, producer, sent) in entries:
            self._settle(1, len(sent.entry))
            producer.peer.close()

    # -- back-pressure -------------------------------------------------------------------------------------------------

    def on_journal_room(self) -> None:
        """Append what waits: a journal takes entries again."""
        for topic in list(self._blocked):
            self.resume(topic)
        self._open_if_room()

    @property
    def is_lagging(self) -> bool:
        """True if producers are held back because sealing is too far behind."""
        return self._is_lagging

    def set_lagging(self, is_lagging: bool) -> None:
        """Note that sealing is too far behind, or no longer is."""
        self._is_lagging = is_lagging
        if is_lagging and self.is_open:
            log.warning("Sealing is too far behind: producers are held back.")
            self._set_gate(False)
        self._open_if_room()

    def _open_if_room(self) -> None:
        if self.is_open or self._is_lagging or self._blocked:
            return
        if all(each.can_append for each in self._journals) and self.pending_bytes * 2 <= self._buffer_bytes:
            self._set_gate(True)

    def _set_gate(self, is_open: bool) -> None:
        self.is_open = is_open
        self._gate_changed()


@dataclass(slots=True)
class _Group:
    """Entries of one topic that were acknowledged together."""

    messages: int = 0
    size_bytes: int = 0
    ends: dict[LedgerId, int] = field(default_factory=dict)


def _answer_unstored(producer: Producer, number: int, sent: Sent, verdict: Verdict) -> None:
    """Answer an entry that is a duplicate, or may be one."""
    match verdict:
        case Verdict.DUPLICATE:
            receipt = (sent.sequence_id, sent.highest_sequence_id, _NO_ID, _NO_ID)
            producer.answer(number, replies.send_receipts(producer.info.producer_id, [receipt]))
            return
        case Verdict.UNDECIDED:
            code, why = ServerError.PersistenceError, "was sent before, its outcome is open: send it again later"
        case _:
            code, why = refusal_of_one_entry(producer.peer), "begins a batch of which some are stored: send the others"
    producer.refuse(number, sent.sequence_id, code, f"Message {sent.sequence_id} {why}.")
