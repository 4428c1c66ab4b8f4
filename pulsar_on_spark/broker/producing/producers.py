"""The producers of one topic: admission, names and waiting for exclusivity. No IO, no clock.

Pulsar's access modes (its `AbstractTopic`):

| mode | beside other producers | without other producers |
|---|---|---|
| Shared | admitted beside Shared ones; ProducerBusy beside an exclusive or a waiting one | admitted |
| Exclusive | ProducerFenced | admitted under a new topic epoch |
| WaitForExclusive | queued until the last other producer has left | as Exclusive |
| ExclusiveWithFencing | all others are closed, waiting ones are fenced | as Exclusive |

Another cluster's replicator is exempt: it is admitted beside an exclusive producer, does not prevent exclusivity, is
not fenced, and does not count towards the maximum (Pulsar treats it as a Shared producer). Only its name must be free.

The **topic epoch** grows with each exclusive producer and is durable before that producer gets it: the effect
`CommitEpoch` is answered by `epoch_committed` or `epoch_not_committed`. A producer that reconnects with the current
epoch keeps it; a producer with an older epoch is fenced, because another producer was exclusive in between. A producer
with a newer epoch, which no producer ever got, is fenced too: only the topic itself counts epochs (Pulsar stores the
newer one as the topic's). A topic without an epoch treats a producer with an epoch as new, because a non-persistent
topic forgets its epoch when it is unloaded.

Three rules are stricter than Pulsar's: a waiting producer is admitted only when no other is left, an outdated producer
with ExclusiveWithFencing closes no other, and an exclusive producer that reconnects replaces itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias

from pulsar_on_spark.broker.producing.replicated import Replication

_EPOCHS: Final = 2**63
"""Number of epochs: after the last one, counting restarts at 0."""
_NAME_HEX_DIGITS: Final = 16
"""Hex digits of the incarnation's id in a generated name. Each entry contains its producer's name, so names are short.
"""


class AccessMode(IntEnum):
    """Pulsar's ProducerAccessMode, by its numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer as its client requested it.

    Attributes:
        connection: The client's connection.
        producer_id: The client's id of the producer, unique in the connection.
        name: Its name, given or generated.
        is_generated_name: True if a broker generated the name, now or for an earlier connection. Such a name is unique.
        epoch: The client's counter of its attempts to connect this producer.
        access_mode: Its access mode; see the module.
        topic_epoch: The topic epoch that it got when it was last exclusive; None if it never was exclusive.
        replication: The deduplication of its entries if it is another cluster's replicator; else None.
        encrypts: True if its client announced encrypted messages.
    """

    connection: Hashable
    producer_id: int
    name: str
    is_generated_name: bool = False
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    replication: Replication | None = None
    encrypts: bool = False

    @property
    def may_encrypt(self) -> bool:
        """True if the producer's messages may be encrypted.

        A replicator does not announce encryption, because it forwards messages of many producers.
        """
        return self.encrypts or self.replication is not None

    def succeeds(self, other: ProducerInfo) -> bool:
        """Return True if this is `other` after a reconnect that the broker noticed before the old connection's end."""
        is_same = (self.connection, self.producer_id) == (other.connection, other.producer_id)
        is_own_name = self.is_generated_name and other.is_generated_name
        return self.name == other.name and (is_same or is_own_name) and self.epoch > other.epoch


@dataclass(frozen=True, slots=True)
class Ready:
    """Effect: admit the producer (PRODUCER_SUCCESS, producer_ready true).

    Attributes:
        producer: The producer.
        topic_epoch: The topic epoch that the client gets; None for a producer that is not exclusive.
    """

    producer: ProducerInfo
    topic_epoch: int | None


@dataclass(frozen=True, slots=True)
class Queued:
    """Effect: let the producer wait (PRODUCER_SUCCESS, producer_ready false) until `Ready` or `Refused` follows."""

    producer: ProducerInfo


@dataclass(frozen=True, slots=True)
class Refused:
    """Effect: refuse the producer with an error.

    Attributes:
        producer: The producer.
        error: The name of Pulsar's ServerError.
        reason: The sentence that the client gets.
        holder: The producer that already has this name; None for other reasons. If the holder's connection is dead,
            remove the connection's producers, and add the refused producer again.
    """

    producer: ProducerInfo
    error: Literal["ProducerBusy", "ProducerFenced", "PersistenceError"]
    reason: str
    holder: ProducerInfo | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Effect: drop all further entries of this producer.

    Attributes:
        producer: The producer.
        notify: True to send CLOSE_PRODUCER to its client; False if the client has replaced this producer.
    """

    producer: ProducerInfo
    notify: bool


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    """Effect: make this topic epoch durable, and then call `epoch_committed` or `epoch_not_committed`."""

    epoch: int


Effect: TypeAlias = Ready | Queued | Refused | Close | CommitEpoch


class Producers:
    """The producers of one topic. A single owner calls it from one thread, and carries out the effects in order.

    Args:
        topic: The topic's full name, for errors.
        topic_epoch: The durable topic epoch; None if no producer was ever exclusive.
        max_producers: Maximum number of connected and waiting producers; 0 for no limit.
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
        """The durable topic epoch; None if no producer was ever exclusive."""
        return self._topic_epoch

    @property
    def connected(self) -> Iterable[ProducerInfo]:
        """The producers that may publish now, replicators last."""
        return [*self._connected.values(), *self._replicators.values()]

    @property
    def waiting(self) -> Iterable[ProducerInfo]:
        """The producers that wait for exclusive access, in the order in which they will be admitted."""
        return self._waiting.values()

    @property
    def is_empty(self) -> bool:
        """True if no producer is connected or waits."""
        return not (self._connected or self._replicators or self._waiting) and self._candidate is None

    def add(self, producer: ProducerInfo) -> list[Effect]:
        """Add a producer, and return the effects to carry out in order.

        The producer gets `Ready`, `Queued` or `Refused`, now or after an epoch is committed.
        """
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
        """Remove a producer that its client closed, or whose connection has ended; return the effects to carry out.

        A producer that was removed before has no effects.
        """
        if self._named(producer.name) != producer:
            return []
        self._forget(producer)
        return self._advance()

    def epoch_committed(self) -> list[Effect]:
        """Continue after the epoch of `CommitEpoch` became durable, and return the effects to carry out."""
        assert self._committing is not None, "no epoch was asked for"
        (self._topic_epoch, producer), self._committing = self._committing, None
        return self._become_exclusive() if producer == self._candidate else self._advance()

    def epoch_not_committed(self, reason: str) -> list[Effect]:
        """Refuse the producer whose topic epoch was not committed, and return the effects to carry out.

        Args:
            reason: The sentence that the producer's client gets.
        """
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

    def set_max_producers(self, max_producers: int) -> None:
        """Change the maximum number of producers, 0 for no limit; connected and waiting producers stay."""
        self._max_producers = max_producers

    # -- admission -----------------------------------------------------------------------------------------------------

    def _admit(self, producer: ProducerInfo, inherits: bool) -> list[Effect]:
        """Decide on a producer whose name is free.

        Args:
            producer: The producer.
            inherits: True if it replaces the exclusive producer or the next one to be exclusive.
        """
        if producer.replication is not None:
            self._replicators[producer.name] = producer
            return [Ready(producer, None)]
        if self._has_other_epoch(producer):
            return [self._fenced(producer)]
        count = len(self._connected) + len(self._waiting) + (self._candidate is not None)
        is_fencing = producer.access_mode is AccessMode.EXCLUSIVE_WITH_FENCING
        if 0 < self._max_producers <= count and not is_fencing:
            reason = (
                f"Topic {self._topic} has {count} producers, its limit (max_producers_per_topic): close one, or raise "
                "the limit."
            )
            return [Refused(producer, "ProducerBusy", reason)]
        return self._ADMISSIONS[producer.access_mode](self, producer, inherits)

    def _admit_shared(self, producer: ProducerInfo, _: bool) -> list[Effect]:
        owner = self._owner()
        if owner is not None or self._waiting:
            which = (
                f"the exclusive producer {owner.name!r}"
                if owner is not None
                else "a producer that waits for exclusivity"
            )
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
        reason = f"The producer {producer.name!r} took over topic {self._topic} (ExclusiveWithFencing)."
        candidates = [] if self._candidate is None else [self._candidate]
        fenced: list[Effect] = [Refused(loser, "ProducerFenced", reason) for loser in [*candidates, *self.waiting]]
        fenced += [Close(connected, notify=True) for connected in self._connected.values()]
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

    def _has_other_epoch(self, producer: ProducerInfo) -> bool:
        if producer.access_mode is AccessMode.SHARED or producer.topic_epoch is None or self._topic_epoch is None:
            return False
        return producer.topic_epoch != self._topic_epoch

    def _fenced(self, producer: ProducerInfo) -> Refused:
        reason = (
            f"The producer {producer.name!r} has topic epoch {producer.topic_epoch}, but topic {self._topic} has "
            f"{self._topic_epoch}, because another producer was exclusive in between or the epoch was never given: "
            "create the producer again."
        )
        return Refused(producer, "ProducerFenced", reason)

    # -- epochs --------------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Effect]:
        """Admit the next waiting producer if no other is connected; return the effects, such as its `CommitEpoch`."""
        effects: list[Effect] = []
        while self._owner() is None and not self._connected and self._waiting:
            following = self._waiting.pop(next(iter(self._waiting)))
            if self._has_other_epoch(following):
                effects.append(self._fenced(following))
            else:
                self._candidate = following
        candidate = self._candidate
        if candidate is None or self._committing is not None:
            return effects
        if candidate.topic_epoch is not None and candidate.topic_epoch == self._topic_epoch:
            return effects + self._become_exclusive()
        if self._has_other_epoch(candidate):  # another producer's epoch was committed meanwhile
            self._candidate = None
            return [*effects, self._fenced(candidate), *self._advance()]
        epoch = 0 if self._topic_epoch is None else (self._topic_epoch + 1) % _EPOCHS
        self._committing = (epoch, candidate)
        return [*effects, CommitEpoch(epoch)]

    def _become_exclusive(self) -> list[Effect]:
        assert self._candidate is not None, "a producer has its turn"
        self._exclusive, self._candidate = self._candidate, None
        self._connected[self._exclusive.name] = self._exclusive
        return [Ready(self._exclusive, self._topic_epoch)]


class ProducerNames:
    """Generator of unique names for producers whose clients set none: `<cluster>-<incarnation>-<number>`.

    Args:
        cluster: The cluster's name.
        incarnation: The broker incarnation's id, which is unique among all runs of brokers.
    """

    def __init__(self, cluster: str, incarnation: str) -> None:
        self._prefix = f"{cluster}-{incarnation[:_NAME_HEX_DIGITS]}"
        self._made = 0

    def next_name(self) -> str:
        """Return a new, unique name."""
        self._made += 1
        return f"{self._prefix}-{self._made}"
