"""The broker's health check: store a message as clients do, and read it back.

The check publishes to `pulsar/<broker>/healthcheck`, which retains nothing and is served by this broker alone. The
message is read in the process that also reads for consumers. While the topic's ledger is open, publishing commits no
metadata, so the check also writes to the metadata's disk. The message goes into the broker's first journal. Journals of
topics with other quorums hold their files open and notice a missing storage path only when they write: for these
journals, the check counts the writable paths.
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
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.errors import MetadataError, PulsarpyError, TopicNotFoundError
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import BaseCommand, ServerError
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.server import Sent
from pulsar_on_spark.security.principal import Principal
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.catalog.brokers import own_namespace
from pulsar_on_spark.topic.catalog.policies.change import set_namespace_policies
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import EntryRange

TIMEOUT_S: Final = 10.0
"""Time limit of a check, in seconds."""
VALID_S: Final = 1.0
"""Time for which the outcome of a check is reused, in seconds."""
_PATIENCE_S: Final = 2.0
"""Time to wait for the state of the storage paths, in seconds. It is limited because a path that hangs but is not
needed must not fail the check."""
_ROOM_EVERY_S: Final = 0.1
_NAME: Final = "healthcheck"
_FRAME_HEAD_BYTES: Final = 8
"""Size of the two size fields at the beginning of a frame."""


class HealthCheck:
    """The broker's health check. Concurrent requests share a check, and later requests reuse its outcome for `VALID_S`.

    So at most one message is written each `VALID_S`, for any number of requests.

    Args:
        services: The broker's parts.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._check: asyncio.Task[None] | None = None
        self._valid_until_s = 0.0

    async def require(self) -> None:
        """Run a health check, or share one that is running or ended within the last `VALID_S`.

        Raises:
            ServerRefusalError: the check failed, or took longer than `TIMEOUT_S`; the message names the reason.
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
            check.exception()  # mark it as retrieved, even if the client that asked is gone


async def _store_and_read(services: Services) -> None:
    if services.path.is_lagging:
        raise _ill("The broker reads from no producers because sealing is too far behind: see the sealer's log lines.")
    try:
        await asyncio.to_thread(services.root.store.require_writable)
    except (MetadataError, OSError) as error:
        raise _ill(f"The metadata cannot be committed: {error}") from error
    stage = "The metadata was not read"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            topic = await _topic(services)
            stage = "A message was not stored"
            payload = str(time.time_ns()).encode()
            ledger, entry = await _publish(services, topic, payload)
            stage = "A message that was stored was not read"
            wanted = [EntryRange(LedgerId(ledger), entry, entry + 1)]
            (stored,) = await services.reader.read(topic.part, wanted, 1, 0)
            for journal in services.journals.others:
                stage = f"Messages of topics of quorum {journal.quorum} cannot be stored"
                await _require_room(journal, services.stored)
    except TimeoutError as error:
        raise _ill(f"{stage} in {TIMEOUT_S:.0f} s: check that enough storage paths are writable.") from error
    except (PulsarpyError, OSError) as error:
        raise _ill(f"{stage}: {error}") from error
    if not stored.data.endswith(payload):
        raise _ill("The message that was read differs from the one that was stored: run `pulsarpy storage repair`.")


async def _require_room(journal: Journal, stored: Stored) -> None:
    """Wait until a journal accepts entries, and check that enough storage paths are writable for its ack quorum.

    A journal without topics is not checked.

    Raises:
        ServerRefusalError: too few storage paths are writable.
    """
    while journal.topics and not journal.incarnation.can_append:
        await asyncio.sleep(_ROOM_EVERY_S)
    if journal.topics:
        paths, needed = (await stored.refresh(_PATIENCE_S)).paths_to_write, journal.incarnation.quorum.ack
        if paths < needed:
            raise _ill(
                f"Only {paths} storage paths are writable, but the journal of quorum {journal.quorum} needs {needed}: "
                "see `pulsarpy status`."
            )


async def _topic(services: Services) -> BrokerTopic:
    name = TopicName.parse(f"persistent://{own_namespace(services.ownership.broker.broker)}/{_NAME}")
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
    """Publish the message of a check, and return its ledger and entry id."""
    client = _Client()
    producer = Producer(ProducerInfo(client, 0, _NAME), client, topic)
    # Sequence ids must grow, also after a restart, or deduplication would drop the message as a duplicate.
    sequence_id = time.time_ns()
    metadata = MessageMetadata(producer_name=_NAME, sequence_id=sequence_id, publish_time=current_ms())
    entry = join_entry(metadata.SerializeToString(), payload)
    services.path.publish_entries(topic, producer, Sent(0, sequence_id, 0, 1, False, False, 0, 0, [entry], True))
    producer.when_drained(client.close)
    try:
        return await client.receipt
    finally:
        producer.is_closed = True  # drops the entry if it still waits


class _Client:
    """A client inside the broker (see `Peer`) that waits for one receipt."""

    def __init__(self) -> None:
        self.address = self.client_version = _NAME
        self.protocol_version = 0
        self.principal: Principal | None = None
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
        """Do nothing: this client publishes only one entry."""

    def hold_for(self, seconds: float) -> None:
        """Do nothing: this client publishes only one entry."""

    def close(self) -> None:
        """Fail `receipt` if it has not arrived, because it will not arrive later."""
        self.is_closed = True
        if not self.receipt.done():
            self.receipt.set_exception(_ill("the journal refused it; see which storage paths have failed."))


def _ill(reason: str) -> ServerRefusalError:
    return ServerRefusalError(ServerError.ServiceNotReady, reason)
