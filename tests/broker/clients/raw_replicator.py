"""The replicator of another cluster, by hand: as Apache Pulsar 4.2's, or an older one's, speaks to a broker."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pulsar_on_spark.broker.producing.replicated import POSITION_PROPERTY
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandConnect,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    FeatureFlags,
)
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.frames import frame_of
from pulsar_on_spark.protocol.messages import MessageMetadata
from tests.broker.clients.raw import answer, answer_of, command

SOURCE = "peer"


class Receipt(NamedTuple):
    """A SEND_RECEIPT; its message id is (-1, -1) for an entry that was stored before."""

    sequence_id: int
    highest_sequence_id: int
    ledger: int
    entry: int


def replicated_entry(
    value: bytes,
    at: tuple[int, int] | None = None,
    producer: str = "p",
    sequence_id: int = 0,
    source: str = SOURCE,
    marker_type: int | None = None,
) -> bytes:
    """An entry as a replicator sends it; `at` is its ledger and entry in its source."""
    metadata = MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=1,
        replicated_from=source,
        marker_type=marker_type,
        properties=[] if at is None else [{"key": POSITION_PROPERTY, "value": f"{at[0]}:{at[1]}"}],
    )
    return join_entry(metadata.SerializeToString(), value)


class Replicator:
    """A connection with one producer, number 1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topic: str, source: str) -> None:
        self._reader, self._writer = reader, writer
        self._topic = topic
        self._source = source
        self._epoch = 0

    @classmethod
    async def connect(cls, url: str, topic: str, source: str = SOURCE, *, by_position: bool = True) -> Replicator:
        """Connected; `by_position` says so in CONNECT, and CONNECTED must say so too."""
        host, _, port = url.removeprefix("pulsar://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        flags = FeatureFlags(supports_repl_dedup_by_lid_and_eid=by_position)
        connecting = CommandConnect(client_version="Pulsar-Java-v4.2.4", protocol_version=21, feature_flags=flags)
        writer.write(command("CONNECT", connect=connecting))
        connected = (await answer_of(reader, "CONNECTED")).connected
        assert connected.feature_flags.supports_repl_dedup_by_lid_and_eid
        return cls(reader, writer, topic, source)

    async def produce(self) -> CommandProducerSuccess:
        """The producer is made, or made again."""
        asked = CommandProducer(
            topic=self._topic,
            producer_id=1,
            request_id=1,
            producer_name=f"pulsar.repl.{self._source}-->standalone",
            user_provided_producer_name=True,
            epoch=self._epoch,
        )
        self._epoch += 1
        self._writer.write(command("PRODUCER", producer=asked))
        return (await answer_of(self._reader, "PRODUCER_SUCCESS")).producer_success

    def send(self, entry: bytes, sequence_id: int = 0, *, marker: bool = False) -> None:
        """SEND one entry of one message."""
        send = CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1, marker=marker)
        said = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
        self._writer.write(frame_of(said, len(entry)) + entry)

    async def answer(self) -> BaseCommand:
        """The broker's next command."""
        return await answer(self._reader)

    async def receipt(self) -> Receipt:
        """The next SEND_RECEIPT."""
        said = (await answer_of(self._reader, "SEND_RECEIPT")).send_receipt
        ledger, entry = (_signed(each) for each in (said.message_id.ledgerId, said.message_id.entryId))
        return Receipt(said.sequence_id, said.highest_sequence_id, ledger, entry)

    async def replicate(self, entries: list[bytes]) -> list[Receipt]:
        """Send entries, all at once; returns their receipts."""
        for entry in entries:
            self.send(entry)
        return [await self.receipt() for _ in entries]

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def _signed(number: int) -> int:
    """The protocol's ids are unsigned on the wire, and -1 to Java."""
    return number - (1 << 64) if number >> 63 else number
