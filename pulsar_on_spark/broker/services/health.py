"""The broker's health check: store a message on the way of all messages, and read it back.

It is published to `pulsar/<cluster>/healthcheck`, where nothing is retained, and read in the process that reads for
consumers. That commits no metadata while the topic's ledger is open, so the metadata's disk is looked at, too. It goes
into the broker's first journal. The others, of topics with other quorums, hold their files open and learn only when
they write that a storage path is gone: for them the paths are counted.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pulsar_on_spark.broker.observe.stored import Stored
from pulsar_on_spark.broker.producing.producer import Producer
from pulsar_on_spark.broker.producing.producers import ProducerInfo
from pulsar_on_spark.broker.runtime.journals import Journal
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.metadata.log.delta_log import require_writable
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import MetadataError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange

TIMEOUT_S: Final = 10.0
"""Time limit of a check."""
VALID_S: Final = 1.0
"""Time for which its outcome is reused."""
_PATIENCE_S: Final = 2.0
"""Time limit of a look at the storage paths: one that hangs and is not needed must not turn health red."""
_ROOM_EVERY_S: Final = 0.1
_NAME: Final = "healthcheck"
_FRAME_HEAD_BYTES: Final = 8
"""Sizes of a frame and of its command."""


class HealthCheck:
    """The broker's health: requests at the same time share a check, and requests soon after share its outcome.

    So endless requests write at most one message each `VALID_S`.

    Args:
        services: The broker's parts.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._check: asyncio.Task[None] | None = None
        self._valid_until_s = 0.0

    async def require(self) -> None:
        """Store a message and read it, unless a check ended within the last `VALID_S`.

        Raises:
            ServerRefusalError: that is not possible, or takes too long; why, in one sentence.
        """
        loop = asyncio.get_running_loop()
        check = self._check
        if check is None or (check.done() and loop.time() >= self._valid_until_s):
            check = self._check = loop.create_task(_store_and_read(self._services), name="health check")
            check.add_done_callback(self._on_checked)
        await asyncio.shield(check)

    async def stop(self) -> None:
        """Cancel a running check."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    def _on_checked(self, check: asyncio.Task[None]) -> None:
        self._valid_until_s = asyncio.get_running_loop().time() + VALID_S
        if not check.cancelled():
            check.exception()  # known, also where the client that asked has gone


async def _store_and_read(services: Services) -> None:
    if services.path.is_lagging:
        raise _ill("Producers are held back because sealing is too far behind: see what the sealing process says.")
    try:
        await asyncio.to_thread(require_writable, services.root.path / "metadata")
    except (MetadataError, OSError) as error:
        raise _ill(f"Nothing can be committed: {error}") from error
    stage = "The metadata were not read"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            topic = await _topic(services)
            stage = "A message was not stored"
            payload = str(time.time_ns()).encode()
            ledger, entry = await _publish(services, topic, payload)
            stage = "A message that was stored was not read"
            wanted = [EntryRange(LedgerId(ledger), entry, entry + 1)]
            (found,) = await services.reader.read(topic.part, wanted, 1, 0)
            for journal in services.journals.others:
                stage = f"Messages of topics of quorum {journal.quorum} cannot be stored"
                await _require_room(journal, services.stored)
    except TimeoutError as error:
        raise _ill(f"{stage} in {TIMEOUT_S:.0f} s: see that enough storage paths are well.") from error
    except (PulsarpyError, OSError) as error:
        raise _ill(f"{stage}: {error}") from error
    if not found.data.endswith(payload):
        raise _ill("A message was read with another content than it was stored with: run `pulsarpy storage repair`.")


async def _require_room(journal: Journal, stored: Stored) -> None:
    """Wait until a journal takes entries, and refuse one with too few paths; without topics it need not."""
    while journal.topics and not journal.incarnation.can_append:
        await asyncio.sleep(_ROOM_EVERY_S)
    if journal.topics:
        paths, needed = (await stored.look_anew(_PATIENCE_S)).paths_to_write, journal.incarnation.quorum.ack
        if paths < needed:
            raise _ill(f"{paths} storage paths can be written to and {needed} must be, see `pulsarpy status`.")


async def _topic(services: Services) -> BrokerTopic:
    name = TopicName.parse(f"persistent://pulsar/{services.settings.cluster_name}/{_NAME}")
    try:
        topic = await services.topics.get(name)
    except TopicNotFoundError:
        await asyncio.to_thread(_create, services, name)
        topic = await services.topics.get(name)
    assert isinstance(topic, BrokerTopic), "it is persistent"
    return topic


def _create(services: Services, name: TopicName) -> None:
    catalog.create_topic(services.root.store, name, None, exist_ok=True)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    set_namespace_policies(services.root, name.namespace, {"retention": nothing})


async def _publish(services: Services, topic: BrokerTopic, payload: bytes) -> tuple[int, int]:
    """Returns ledger and entry of the message."""
    client = _Client()
    producer = Producer(ProducerInfo(client, 0, _NAME), client, topic)
    # Grows over the broker's life and the next one's: deduplication takes none for one that is stored.
    sequence_id = time.time_ns()
    metadata = MessageMetadata(producer_name=_NAME, sequence_id=sequence_id, publish_time=current_ms())
    entry = join_entry(metadata.SerializeToString(), payload)
    services.path.publish(topic, producer, Sent(0, sequence_id, 0, 1, False, False, 0, 0, entry, True))
    producer.when_drained(client.close)
    try:
        return await client.receipt
    finally:
        producer.is_closed = True  # if it still waits, it is dropped


class _Client:
    """A client of the broker within it (see `Peer`), that waits for one receipt."""

    def __init__(self) -> None:
        self.address = self.client_version = _NAME
        self.protocol_version = 0
        self.is_closed = False
        self.is_writable = True
        self.receipt: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        size = int.from_bytes(data[4:_FRAME_HEAD_BYTES], "big")
        command = BaseCommand.FromString(data[_FRAME_HEAD_BYTES : _FRAME_HEAD_BYTES + size])
        stored = command.send_receipt.message_id
        if command.type == BaseCommand.SEND_RECEIPT and not self.receipt.done():
            self.receipt.set_result((stored.ledgerId, stored.entryId))

    async def is_alive(self) -> bool:
        return True

    def pending_changed(self, entries: int) -> None:
        """Ignore the count: one entry needs no bound."""

    def hold_for(self, seconds: float) -> None:
        """Ignore the pause: one entry needs none."""

    def close(self) -> None:
        """End: the entry has an outcome, with a receipt or without one for ever."""
        self.is_closed = True
        if not self.receipt.done():
            self.receipt.set_exception(_ill("the journal did not take it; see which storage paths have failed."))


def _ill(reason: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.ServiceNotReady, reason)
