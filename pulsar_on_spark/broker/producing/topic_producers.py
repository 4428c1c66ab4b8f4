"""The producers of a loaded topic: carries out the effects of `Producers`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pulsar_on_spark.broker.producing.producer import Producer, ProducersTopic
from pulsar_on_spark.broker.producing.producers import (
    Close,
    CommitEpoch,
    Effect,
    ProducerInfo,
    Producers,
    Queued,
    Ready,
    Refused,
)
from pulsar_on_spark.broker.runtime.peer import Peer
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.throttle import Throttle
from pulsar_on_spark.model.clock import monotonic_ms
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog.policies.policies import Policies

_CODES: Final = {
    "ProducerBusy": ServerError.ProducerBusy,
    "ProducerFenced": ServerError.ProducerFenced,
    "PersistenceError": ServerError.PersistenceError,
}


def _must_encrypt() -> ServerRefusalError:
    return ServerRefusalError(
        ServerError.MetadataError,
        "Encryption is required on this topic (encryptionRequired): give the producer a key to encrypt with.",
    )


class ProducerRefusedError(ServerRefusalError):
    """The refusal of a producer by `Producers`.

    Attributes:
        holder: The producer that already has the refused producer's name; None for another reason.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(_CODES[refused.error], refused.reason)
        self.holder = refused.holder


@dataclass(slots=True)
class _Admission:
    peer: Peer
    queued: Callable[[], None]
    outcome: asyncio.Future[tuple[Producer, int | None]]


class TopicProducers:
    """The producers of one topic.

    Args:
        topic: The topic.
        core: The rules of admission.
        commit_epoch: Makes a topic epoch durable.
        broker_rate: The limit on the publish rate of the whole broker.
    """

    def __init__(
        self,
        topic: ProducersTopic,
        core: Producers,
        commit_epoch: Callable[[int], Awaitable[None]],
        broker_rate: Throttle,
    ) -> None:
        self._topic = topic
        self._core = core
        self._commit_epoch = commit_epoch
        self._admissions: dict[ProducerInfo, _Admission] = {}
        self._connected: dict[ProducerInfo, Producer] = {}
        self._committing: asyncio.Task[None] | None = None
        self._refusal: PulsarpyError | None = None
        self._rate = Throttle()
        self._broker_rate = broker_rate
        self._requires_encryption = False

    @property
    def is_empty(self) -> bool:
        """True if no producer is connected or waits."""
        return self._core.is_empty

    @property
    def connected(self) -> list[Producer]:
        """The connected producers, without those that wait for access."""
        return list(self._connected.values())

    @property
    def are_refused(self) -> bool:
        """True if no producer is admitted now, because of a backlog quota, an unload or the topic's termination."""
        return self._refusal is not None

    @property
    def waiting(self) -> int:
        """The number of producers that wait for exclusive access."""
        return sum(1 for _ in self._core.waiting)

    def apply_limits(self, policies: Policies) -> None:
        """Apply new policies: the maximum number of producers, their publish rate, and required encryption.

        If encryption is required, producers that do not encrypt are disconnected.
        """
        self._core.set_max_producers(policies.max_producers_per_topic)
        rate = policies.publish_rate
        self._rate.set_rate(rate.publish_throttling_rate_in_msg, rate.publish_throttling_rate_in_byte)
        self._requires_encryption = policies.encryption_required
        if self._requires_encryption:
            self._disconnect(_must_encrypt(), lambda info: not info.may_encrypt)

    def on_entries_accepted(self, sent: Sent) -> None:
        """Count accepted entries; stop reading from producers until the topic's and the broker's rate allow the next.

        If the broker's rate is exceeded, producers of other topics are paused when they send their next entry.
        """
        if self._rate.is_unlimited and self._broker_rate.is_unlimited:
            return
        now_s, entries = time.monotonic(), sent.entries
        messages, size_bytes = sent.num_messages * len(entries), sum(map(len, entries))
        wait_s = max(rate.spend_tokens(now_s, messages, size_bytes) for rate in (self._rate, self._broker_rate))
        if wait_s > 0:
            for producer in self.connected:
                producer.peer.hold_for(wait_s)

    async def add(self, info: ProducerInfo, peer: Peer, queued: Callable[[], None]) -> tuple[Producer, int | None]:
        """Admit a producer, waiting for exclusive access if its access mode requires it.

        Args:
            info: The producer's options.
            peer: The client's connection.
            queued: Called if the producer must wait.

        Returns:
            The producer, and the topic epoch if it is exclusive, else None.

        Raises:
            ProducerRefusedError: the producer is not admitted.
            PulsarpyError: the refusal of `hold_producers`, or the topic requires encryption.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._requires_encryption and not info.may_encrypt:
            raise _must_encrypt()
        admission = _Admission(peer, queued, asyncio.get_running_loop().create_future())
        self._admissions[info] = admission
        self._carry_out(self._core.add(info))
        return await admission.outcome

    def remove(self, info: ProducerInfo) -> None:
        """Remove a producer that its client closed or whose connection has ended, even if it still waits."""
        if (producer := self._remove_connected(info)) is not None:
            producer.is_closed = True
        if (admission := self._admissions.pop(info, None)) is not None:
            admission.outcome.cancel()
        self._carry_out(self._core.remove(info))

    def hold_producers(self, refusal: PulsarpyError) -> None:
        """Refuse new producers from now on, and drop further entries: the producers will be disconnected soon.

        Entries in the journal get their receipts first; producers disconnected earlier would send them twice.
        """
        self._refusal = refusal
        for producer in self.connected:
            producer.is_closed = True

    def disconnect_all(self, refusal: PulsarpyError | None = None) -> None:
        """Disconnect all producers; their clients look the topic up again.

        Args:
            refusal: The error for waiting and reconnecting producers; None to admit them again.
        """
        self._refusal = refusal
        error = refusal or ServerRefusalError(ServerError.ServiceNotReady, "Producers were disconnected: reconnect.")
        self._disconnect(error, lambda _: True)

    def _disconnect(self, error: PulsarpyError, which: Callable[[ProducerInfo], bool]) -> None:
        # Waiting producers first: else one would be admitted as soon as the connected producers are closed.
        for info in filter(which, [*self._core.waiting, *self._admissions]):
            if (admission := self._admissions.pop(info, None)) is not None:
                admission.outcome.set_exception(error)
                self._carry_out(self._core.remove(info))
        for producer in self.connected:
            if which(producer.info):
                self._close(producer, notify=True)
                self.remove(producer.info)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ready(info, epoch):
                    admission = self._admissions.pop(info)
                    producer = Producer(info, admission.peer, self._topic, is_closed=self._refusal is not None)
                    self._connected[info] = producer
                    if self._topic.dedup is not None:
                        self._topic.dedup.core.producer_connected(info.name)
                    admission.outcome.set_result((producer, epoch))
                case Queued(info):
                    self._admissions[info].queued()
                case Refused(info):
                    admission = self._admissions.pop(info)
                    admission.outcome.set_exception(ProducerRefusedError(effect))
                case Close(info, notify):
                    if (closed := self._remove_connected(info)) is not None:
                        self._close(closed, notify=notify)
                    elif (waiting := self._admissions.pop(info, None)) is not None:
                        waiting.outcome.cancel()
                case CommitEpoch(epoch):
                    self._committing = asyncio.create_task(self._commit(epoch))

    def _remove_connected(self, info: ProducerInfo) -> Producer | None:
        producer = self._connected.pop(info, None)
        if producer is not None and self._topic.dedup is not None:
            self._topic.dedup.core.producer_left(info.name, monotonic_ms())
        return producer

    @staticmethod
    def _close(producer: Producer, *, notify: bool) -> None:
        producer.is_closed = True
        if notify and not producer.peer.is_closed:
            producer.peer.write(replies.close_producer(producer.info.producer_id))

    async def _commit(self, epoch: int) -> None:
        try:
            await self._commit_epoch(epoch)
        except PulsarpyError as error:
            self._carry_out(self._core.epoch_not_committed(str(error)))
        else:
            self._carry_out(self._core.epoch_committed())
