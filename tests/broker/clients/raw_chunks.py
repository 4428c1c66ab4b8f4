"""Large messages as their chunks make them up: `pulsar-client` throws some away whose chunks come twice.

Its versions up to 3.13 do (apache/pulsar-client-cpp#587): a first chunk that comes again, for it was delivered before a
reconnection or stored again by a producer without deduplication, costs them the whole message.
"""

from __future__ import annotations

from pulsar_on_spark.protocol.commands import BaseCommand, CommandSubscribe
from tests.broker.clients.raw import answer_and_entry, consuming
from tests.kit.pulsar_entries import read_metadata, read_payload


class Chunks:
    """Assembles messages: a first chunk starts its message over, and a chunk that is not the next one is skipped.

    Attributes:
        ends: The ids of messages whose last chunk came, though others were missing.
    """

    def __init__(self) -> None:
        self._begun: dict[str, list[bytes]] = {}
        self.ends: set[str] = set()

    def add(self, entry: bytes) -> bytes | None:
        """The value of the message that the entry completes, if it does."""
        metadata, payload = read_metadata(entry), read_payload(entry)
        if not metadata.HasField("chunk_id"):
            return payload
        if metadata.chunk_id == 0:
            self._begun[metadata.uuid] = []
        begun = self._begun.get(metadata.uuid, [])
        if len(begun) != metadata.chunk_id:
            if metadata.chunk_id + 1 == metadata.num_chunks_from_msg:
                self.ends.add(metadata.uuid)
            return None
        begun.append(payload)
        if len(begun) < metadata.num_chunks_from_msg:
            return None
        return b"".join(self._begun.pop(metadata.uuid))


async def large_messages(url: str, topic: str, subscription: str, last: bytes) -> tuple[list[bytes], set[str]]:
    """Return what a new consumer gets before `last`, without acknowledging it: whole messages, and `Chunks.ends`."""
    reader, writer = await consuming(url, topic, subscription, CommandSubscribe.Exclusive)
    chunks, found = Chunks(), list[bytes]()
    while True:
        said, entry = await answer_and_entry(reader)
        match said.type:
            case BaseCommand.MESSAGE:
                if (value := chunks.add(entry)) == last:
                    writer.close()
                    return found, chunks.ends
                if value is not None:
                    found.append(value)
            case BaseCommand.ERROR | BaseCommand.CLOSE_CONSUMER:
                writer.close()
                raise EOFError(said)
            case _:
                pass
