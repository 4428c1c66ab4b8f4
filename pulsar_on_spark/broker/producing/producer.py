"""A client's producer: the order of its entries and of their answers, and its counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.producing.topic_dedup import TopicDedup
from pulsar_on_spark.broker.runtime.entry_samples import EntrySamples
from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.replies import Receipts
from pulsar_on_spark.protocol.server import Sent

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Published:
    """Counters of messages published to a topic since it was loaded, or by a producer.

    Attributes:
        messages: Number of messages.
        bytes: Bytes of the messages' entries.
        samples: Latencies and sizes of some of a topic's entries; None before the first one.
        last_ms: Time when the topic's last entry was acknowledged, in milliseconds since 1970; 0 for never.
    """

    messages: int = 0
    bytes: int = 0
    last_ms: int = 0
    samples: EntrySamples | None = None

    def add_sample(self, seconds: float, size_bytes: int) -> None:
        """Record the latency in seconds and the size of a sampled entry."""
        if self.samples is None:
            self.samples = EntrySamples()
        self.samples.observe(seconds, size_bytes)


class ProducersTopic(Protocol):
    """A topic's state that its producers share.

    Attributes:
        dedup: The topic's deduplication; None if it is off.
    """

    dedup: TopicDedup | None

    def publish_entries(self, producer: Producer, sent: Sent) -> None:
        """Accept a producer's next run of entries; their receipts or refusals follow later."""

    def forget_producer(self, producer: Producer) -> None:
        """Remove a producer that its client closed, or whose connection has ended."""


@dataclass(slots=True, eq=False)
class Producer:
    """A client's admitted producer.

    Attributes:
        info: The options with which the client created it.
        peer: The client's connection.
        topic: The topic to which it publishes.
        pending: Number of its entries without an answer.
        is_closed: True if its waiting and further entries are dropped.
        receipts: Receipts of stored entries that `acknowledge` sends next.
        published: The counters of its messages.
        connected_at: Time at which it was admitted, in seconds since 1970.
        metadata: Properties from its client, for stats.
    """

    info: ProducerInfo
    peer: Peer
    topic: ProducersTopic
    pending: int = 0
    is_closed: bool = False
    receipts: list[Receipts] = field(default_factory=list)
    published: Published = field(default_factory=Published)
    connected_at: float = field(default_factory=time.time)
    metadata: Mapping[str, str] = field(default_factory=dict)
    _taken: int = 0
    _settled: int = 0
    """Entries are answered in order: all entries up to this number have an answer."""
    _answers: dict[int, bytes] = field(default_factory=dict)
    """Answers to entries that were not stored, by number, kept until all entries before them are answered."""
    _drained: Callable[[], None] | None = None

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call a function as soon as no entry is pending: now, or after the last answer."""
        if self.pending:
            self._drained = call
        else:
            call()

    def take_numbers(self, entries: int) -> int:
        """Return the number of the producer's next entry, from 1; this many entries are pending from now on."""
        self.pending += entries
        self.peer.pending_changed(entries)
        first = self._taken + 1
        self._taken += entries
        return first

    def answer(self, number: int, answer: bytes) -> None:
        """Answer an entry that is not stored, after all entries before it are answered.

        Args:
            number: The number that `take_numbers` gave it.
            answer: The frame to send; empty to send none.
        """
        self._answers[number] = answer
        self._no_longer_pending(self._send_answers())

    def refuse(self, number: int, sequence_id: int, error: ServerError, reason: str) -> None:
        """Refuse an entry with a SEND_ERROR.

        A replicator's entries are one ordered stream, deduplicated by the highest id: if later entries were stored, a
        retry of this entry would look like a duplicate and be lost. So no further entry is accepted until the
        replicator reconnects. The error makes the replicator reconnect and repeat all entries without a receipt.

        Args:
            number: The number that `take_numbers` gave it.
            sequence_id: The entry's sequence id as the client sent it.
            error: The code for clients other than replicators.
            reason: The sentence that the client gets.
        """
        if self.info.replication is None:
            self.answer(number, replies.send_error(self.info.producer_id, sequence_id, error, reason))
            return
        log.warning("Replication by %r waits: %s", self.info.name, reason, extra={"connection": self.peer.address})
        self.is_closed = True
        refusal = replies.send_error(self.info.producer_id, sequence_id, ServerError.PersistenceError, reason)
        self.answer(number, refusal)
        if self._drained is None:
            self.when_drained(self.disconnect)

    def disconnect(self) -> None:
        """Disconnect the producer: its client reconnects, and sends entries without a receipt again."""
        self.is_closed = True
        if not self.peer.is_closed:
            self.peer.write(replies.close_producer(self.info.producer_id))
        self.topic.forget_producer(self)

    def acknowledge(self) -> None:
        """Send the receipts of stored entries, and the answers between them, in the order of the entries."""
        receipts, self.receipts = self.receipts, []
        settled = sum(run.entries for run in receipts)
        if self._answers:
            for receipt in chain.from_iterable(run.singles() for run in receipts):
                self._send_receipts([receipt], 1)
                settled += self._send_answers()
        else:
            self._send_receipts(receipts, settled)
        self._no_longer_pending(settled)

    def _send_receipts(self, receipts: Sequence[Receipts], entries: int) -> None:
        self._settled += entries
        if not self.peer.is_closed:
            self.peer.write(replies.send_receipts(self.info.producer_id, receipts))

    def _send_answers(self) -> int:
        """Send the answers that are next in order; return their number."""
        before = self._settled
        while (answer := self._answers.pop(self._settled + 1, None)) is not None:
            self._settled += 1
            if answer:
                self.peer.write(answer)
        return self._settled - before

    def _no_longer_pending(self, entries: int) -> None:
        self.pending -= entries
        self.peer.pending_changed(-entries)
        if not self.pending and self._drained is not None:
            call, self._drained = self._drained, None
            call()
