"""The producers of one topic: admitted ones, their names, and waiting ones. No IO, no clock.

Pulsar's access modes (its `AbstractTopic`):

| mode | while others publish | alone |
|---|---|---|
| Shared | admitted beside Shared ones; ProducerBusy beside an exclusive one, or while another waits | admitted |
| Exclusive | ProducerFenced | admitted under a new topic epoch |
| WaitForExclusive | queued; its turn comes when the last one has gone | as Exclusive |
| ExclusiveWithFencing | all others are closed, waiting ones are fenced | as Exclusive |

The replicator of another cluster is independent of this: it is admitted beside an exclusive producer, prevents none
from being exclusive, is not fenced, and does not count (Pulsar counts it as a Shared producer). It only needs its name.

The **topic epoch** grows with each exclusive producer and is durable before that producer gets it: `CommitEpoch`
requests it, `epoch_committed` or `epoch_not_committed` answers. A producer that returns with the current epoch keeps
it; with an older one it is fenced, because another published exclusively in between.

Stricter than Pulsar in three places: a waiting producer's turn comes only when no other is left, an outdated one with
ExclusiveWithFencing closes no others, and an exclusive producer that returns on a new connection replaces itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias

from pulsar_on_spark.broker.producing.replicated import Replication

_NAME_HEX_DIGITS: Final = 16
"""Digits of the incarnation in a generated name: names go into every entry, so they are short."""


class AccessMode(IntEnum):
    """Pulsar's ProducerAccessMode, by its numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer as requested by its client.

    Attributes:
        connection: Which connection it is on.
        producer_id: The client's number for it on that connection.
        name: Its name, given or generated.
        is_generated_name: True if a broker made the name, now or at an earlier connection: then it is unique.
        epoch: The client's counter of its attempts to connect this producer.
        access_mode: See the module.
        topic_epoch: The topic epoch under which it published before; None if it never did exclusively.
        replication: Its deduplication, if it is the replicator of another cluster; else None.
    """

    connection: Hashable
    producer_id: int
    name: str
    is_generated_name: bool = False
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    replication: Replication | None = None

    def succeeds(self, other: ProducerInfo) -> bool:
        """True if this is the same producer, reconnected: the broker has not noticed yet that the other one is gone."""
        is_same = (self.connection, self.producer_id) == (other.connection, other.producer_id)
        is_own_name = self.is_generated_name and other.is_generated_name
        return self.name == other.name and (is_same or is_own_name) and self.epoch > other.epoch


@dataclass(frozen=True, slots=True)
class Ready:
    """Effect: notify the producer that it may publish (PRODUCER_SUCCESS, producer_ready true).

    `topic_epoch` is None for a Shared one.
    """

    producer: ProducerInfo
    topic_epoch: int | None


@dataclass(frozen=True, slots=True)
class Queued:
    """Effect: notify the producer that it waits (PRODUCER_SUCCESS, producer_ready false); another answer follows."""

    producer: ProducerInfo


@dataclass(frozen=True, slots=True)
class Refused:
    """Effect: the producer gets an error and is forgotten.

    Attributes:
        producer: The refused producer.
        error: Pulsar's ServerError by name.
        reason: One sentence.
        holder: The producer with its name. If the holder's connection is dead, remove its producers and add again.
    """

    producer: ProducerInfo
    error: Literal["ProducerBusy", "ProducerFenced", "PersistenceError"]
    reason: str
    holder: ProducerInfo | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Effect: what this producer sends from now on is not published.

    `notify`: notify its client (CLOSE_PRODUCER); else the client itself has replaced it.
    """

    producer: ProducerInfo
    notify: bool


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    """Effect: make this topic epoch durable. Outcome: `epoch_committed` or `epoch_not_committed`."""

    epoch: int


Effect: TypeAlias = Ready | Queued | Refused | Close | CommitEpoch


class Producers:
    """The producers of one topic. One owner drives it, from one thread, and carries out effects in their order.

    Args:
        topic: The topic's full name, for errors.
        topic_epoch: The durable one; None if there was no exclusive producer yet.
        max_producers: How many may be connected or wait; 0: any number.
    """

    def __init__(self, topic: str, topic_epoch: int | None = None, max_producers: int = 0) -> None:
        self._topic = topic
        self._topic_epoch = topic_epoch
        self._max_producers = max_producers
        self._connected: dict[str, ProducerInfo] = {}
        self._replicators: dict[str, ProducerInfo] = {}
        self._exclusive: ProducerInfo | None = None
        self._candidate: ProducerInfo | None = None
        self._waiting: dict[str, ProducerInfo] = {}
        self._committing: tuple[int, ProducerInfo] | None = None

    @property
    def topic_epoch(self) -> int | None:
        """The durable topic epoch."""
        return self._topic_epoch

    @property
    def connected(self) -> Iterable[ProducerInfo]:
        """Return the producers that may publish now."""
        return [*self._connected.values(), *self._replicators.values()]

    @property
    def waiting(self) -> Iterable[ProducerInfo]:
        """Return the producers that wait for their turn, the next one first."""
        return self._waiting.values()

    @property
    def is_empty(self) -> bool:
        """True if no producer is connected or waits."""
        return not (self._connected or self._replicators or self._waiting) and self._candidate is None

    def add(self, producer: ProducerInfo) -> list[Effect]:
        """A client asks for a producer; it gets `Ready`, `Queued` or `Refused`, now or once an epoch is committed."""
        effects: list[Effect] = []
        holder = self._named(producer.name)
        inherits = False
        if holder is not None:
            if not producer.succeeds(holder):
                reason = f"A producer named {producer.name!r} is connected to {self._topic}: choose another name."
                return [Refused(producer, "ProducerBusy", reason, holder)]
            effects.append(Close(holder, notify=False))
            if holder.name in self._waiting and producer.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
                self._waiting[producer.name] = producer
                return [*effects, Queued(producer)]
            inherits = holder in (self._exclusive, self._candidate)
            self._forget(holder)
        effects += self._admit(producer, inherits)
        return effects + self._advance()

    def remove(self, producer: ProducerInfo) -> list[Effect]:
        """Remove a producer that its client closed, or that is gone; ignore an unknown one."""
        if self._named(producer.name) != producer:
            return []
        self._forget(producer)
        return self._advance()

    def epoch_committed(self) -> list[Effect]:
        """The epoch that `CommitEpoch` named is durable."""
        assert self._committing is not None, "no epoch was asked for"
        (self._topic_epoch, producer), self._committing = self._committing, None
        return self._become_exclusive() if producer == self._candidate else self._advance()

    def epoch_not_committed(self, reason: str) -> list[Effect]:
        """The epoch could not be committed, for all that is known; `reason` is one sentence for the producer."""
        assert self._committing is not None, "no epoch was asked for"
        (_, producer), self._committing = self._committing, None
        effects: list[Effect] = []
        if producer == self._candidate:
            self._candidate = None
            effects.append(Refused(producer, "PersistenceError", reason))
        return effects + self._advance()

    def _named(self, name: str) -> ProducerInfo | None:
        if self._candidate is not None and self._candidate.name == name:
            return self._candidate
        return self._connected.get(name) or self._waiting.get(name) or self._replicators.get(name)

    def _forget(self, producer: ProducerInfo) -> None:
        if producer == self._candidate:
            self._candidate = None
        elif producer.name in self._waiting:
            del self._waiting[producer.name]
        elif producer.replication is not None:
            del self._replicators[producer.name]
        else:
            del self._connected[producer.name]
            self._exclusive = None if producer == self._exclusive else self._exclusive

    def limit(self, max_producers: int) -> None:
        """Set the limit of connected and waiting producers, 0 for none; present ones stay."""
        self._max_producers = max_producers

    # -- admission -----------------------------------------------------------------------------------------------------

    def _admit(self, producer: ProducerInfo, inherits: bool) -> list[Effect]:
        """Decide on a producer whose name is free; `inherits`: it replaces the exclusive one."""
        if producer.replication is not None:
            self._replicators[producer.name] = producer
            return [Ready(producer, None)]
        if self._is_outdated(producer):
            return [self._outdated(producer)]
        count = len(self._connected) + len(self._waiting) + (self._candidate is not None)
        is_fencing = producer.access_mode is AccessMode.EXCLUSIVE_WITH_FENCING
        if 0 < self._max_producers <= count and not is_fencing:
            reason = f"Topic {self._topic} has {count} producers, its limit (max_producers_per_topic): close one."
            return [Refused(producer, "ProducerBusy", reason)]
        return self._ADMISSIONS[producer.access_mode](self, producer, inherits)

    def _admit_shared(self, producer: ProducerInfo, _: bool) -> list[Effect]:
        owner = self._owner()
        if owner is not None or self._waiting:
            which = f"the exclusive producer {owner.name!r}" if owner is not None else "one that waits for exclusivity"
            return [Refused(producer, "ProducerBusy", f"Topic {self._topic} has {which}: close it first.")]
        self._connected[producer.name] = producer
        return [Ready(producer, None)]

    def _admit_exclusive(self, producer: ProducerInfo, inherits: bool) -> list[Effect]:
        others = [*filter(None, [self._owner()]), *self._connected.values(), *([] if inherits else self.waiting)]
        if others:
            reason = (
                f"Topic {self._topic} has the producer {others[0].name!r} already: close it, or take over with "
                "ExclusiveWithFencing."
            )
            return [Refused(producer, "ProducerFenced", reason)]
        self._candidate = producer
        return []

    def _admit_waiting(self, producer: ProducerInfo, inherits: bool) -> list[Effect]:
        if self._owner() is None and not self._connected and (inherits or not self._waiting):
            self._candidate = producer
            return []
        self._waiting[producer.name] = producer
        return [Queued(producer)]

    def _admit_fencing(self, producer: ProducerInfo, _: bool) -> list[Effect]:
        reason = f"The producer {producer.name!r} took topic {self._topic} for itself (ExclusiveWithFencing)."
        candidates = [] if self._candidate is None else [self._candidate]
        fenced: list[Effect] = [Refused(each, "ProducerFenced", reason) for each in [*candidates, *self.waiting]]
        fenced += [Close(each, notify=True) for each in self._connected.values()]
        self._waiting.clear()
        self._connected.clear()
        self._exclusive, self._candidate = None, producer
        return fenced

    _ADMISSIONS: Final[dict[AccessMode, Callable[[Producers, ProducerInfo, bool], list[Effect]]]] = {
        AccessMode.SHARED: _admit_shared,
        AccessMode.EXCLUSIVE: _admit_exclusive,
        AccessMode.WAIT_FOR_EXCLUSIVE: _admit_waiting,
        AccessMode.EXCLUSIVE_WITH_FENCING: _admit_fencing,
    }

    def _owner(self) -> ProducerInfo | None:
        return self._exclusive or self._candidate

    def _is_outdated(self, producer: ProducerInfo) -> bool:
        known = -1 if self._topic_epoch is None else self._topic_epoch
        is_exclusive = producer.access_mode is not AccessMode.SHARED
        return is_exclusive and producer.topic_epoch is not None and producer.topic_epoch < known

    def _outdated(self, producer: ProducerInfo) -> Refused:
        reason = (
            f"The producer {producer.name!r} comes with topic epoch {producer.topic_epoch} and {self._topic} is at "
            f"{self._topic_epoch}: another one published exclusively in between."
        )
        return Refused(producer, "ProducerFenced", reason)

    # -- epochs --------------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """Give the next one its turn, and request the epoch of an exclusive one."""
        effects: list[Effect] = []
        while self._owner() is None and not self._connected and self._waiting:
            following = self._waiting.pop(next(iter(self._waiting)))
            if self._is_outdated(following):
                effects.append(self._outdated(following))
            else:
                self._candidate = following
        candidate = self._candidate
        if candidate is None or self._committing is not None:
            return effects
        if candidate.topic_epoch is not None and candidate.topic_epoch == self._topic_epoch:
            return effects + self._become_exclusive()
        if self._is_outdated(candidate):  # an epoch was committed for another one meanwhile
            self._candidate = None
            return [*effects, self._outdated(candidate), *self._advance()]
        epoch = candidate.topic_epoch
        if epoch is None:
            epoch = 0 if self._topic_epoch is None else self._topic_epoch + 1
        self._committing = (epoch, candidate)
        return [*effects, CommitEpoch(epoch)]

    def _become_exclusive(self) -> list[Effect]:
        assert self._candidate is not None, "somebody's turn it is"
        self._exclusive, self._candidate = self._candidate, None
        self._connected[self._exclusive.name] = self._exclusive
        return [Ready(self._exclusive, self._topic_epoch)]


class ProducerNames:
    """Makes names for producers that come without one: `<cluster>-<incarnation>-<number>`, never one twice.

    Args:
        cluster: The cluster's name.
        incarnation: The broker incarnation's id, which no other run of any broker has.
    """

    def __init__(self, cluster: str, incarnation: str) -> None:
        self._prefix = f"{cluster}-{incarnation[:_NAME_HEX_DIGITS]}"
        self._made = 0

    def next(self) -> str:
        """Return an unused name."""
        self._made += 1
        return f"{self._prefix}-{self._made}"
