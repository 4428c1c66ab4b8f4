"""Encoders of the commands that a broker sends: each function returns the frame of one command.

Ids of ledgers and entries may be negative, as in Pulsar's earliest position (-1, -1). All ids are encoded as unsigned
64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from pulsar_on_spark.protocol.commands import (
    AuthData,
    BaseCommand,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandAuthChallenge,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnected,
    CommandConsumerStatsResponse,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandPing,
    CommandPong,
    CommandProducerSuccess,
    CommandReachedEndOfTopic,
    CommandSendError,
    CommandSuccess,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
    FeatureFlags,
    MessageIdData,
    Schema,
    ServerError,
)
from pulsar_on_spark.protocol.frames import frame_of, head_of
from pulsar_on_spark.protocol.varint import varint, varints

NO_REQUEST_ID = 2**64 - 1
"""The request id in commands that the broker sends without a client's request."""

_64_BITS = 2**64 - 1


def connected(server_version: str, protocol_version: int, max_message_size: int, feature_flags: FeatureFlags) -> bytes:
    """Encode CONNECTED: the answer to CONNECT, and the first command that a broker sends after authentication.

    Args:
        server_version: The broker's version. Clients refuse an empty one.
        protocol_version: The lower of the client's and the broker's protocol versions.
        max_message_size: Limit of an entry's metadata and payload, in bytes.
        feature_flags: The broker's features.
    """
    body = CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_size,
        feature_flags=feature_flags,
    )
    return _frame(BaseCommand(type=BaseCommand.CONNECTED, connected=body))


def auth_challenge(server_version: str, protocol_version: int, method: str, data: bytes) -> bytes:
    """Encode AUTH_CHALLENGE: the client must continue its authentication, or replace its expired credentials."""
    challenge = AuthData(auth_method_name=method, auth_data=data)
    body = CommandAuthChallenge(server_version=server_version, challenge=challenge, protocol_version=protocol_version)
    return _frame(BaseCommand(type=BaseCommand.AUTH_CHALLENGE, authChallenge=body))


def ping() -> bytes:
    """Encode PING: the broker checks that the client is alive."""
    return _PING


def pong() -> bytes:
    """Encode PONG: the answer to PING."""
    return _PONG


def success(request_id: int) -> bytes:
    """Encode SUCCESS: the request was carried out."""
    return _frame(BaseCommand(type=BaseCommand.SUCCESS, success=CommandSuccess(request_id=request_id)))


def error(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode ERROR: the request was refused."""
    body = CommandError(request_id=request_id, error=error, message=message)
    return _frame(BaseCommand(type=BaseCommand.ERROR, error=body))


def lookup_response(
    request_id: int,
    service_url: str | None,
    service_url_tls: str | None = None,
    *,
    redirect: bool = False,
    authoritative: bool = True,
) -> bytes:
    """Encode LOOKUP_RESPONSE: the broker to connect to or, for a redirect, the broker to ask next.

    A URL that the broker does not have is None.
    """
    response = CommandLookupTopicResponse.Redirect if redirect else CommandLookupTopicResponse.Connect
    body = CommandLookupTopicResponse(
        request_id=request_id,
        response=response,
        brokerServiceUrl=service_url,
        brokerServiceUrlTls=service_url_tls,
        authoritative=authoritative,
    )
    return _frame(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=body))


def lookup_failed(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode LOOKUP_RESPONSE: the lookup failed."""
    body = CommandLookupTopicResponse(
        request_id=request_id, response=CommandLookupTopicResponse.Failed, error=error, message=message
    )
    return _frame(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=body))


def partition_metadata_response(request_id: int, partitions: int) -> bytes:
    """Encode PARTITIONED_METADATA_RESPONSE: the topic's number of partitions; 0 if it is not partitioned."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id, partitions=partitions, response=CommandPartitionedTopicMetadataResponse.Success
    )
    return _frame(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=body))


def partition_metadata_failed(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode PARTITIONED_METADATA_RESPONSE: the request failed."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=CommandPartitionedTopicMetadataResponse.Failed,
        error=error,
        message=message,
    )
    return _frame(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=body))


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    producer_ready: bool = True,
) -> bytes:
    """PRODUCER_SUCCESS: the producer may send or, if `producer_ready` is False, must wait for another PRODUCER_SUCCESS.

    Args:
        request_id: The id of the client's request.
        producer_name: The producer's name, which the client chose or the broker generated.
        last_sequence_id: The last sequence id that was stored from a producer of this name; -1 if there is none, or
            without deduplication.
        schema_version: The version of the producer's schema, eight bytes; empty without a schema.
        topic_epoch: The topic's epoch, for a producer with an access mode other than Shared; None for a Shared one.
        producer_ready: False while another producer has exclusive access to the topic.
    """
    body = CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=producer_ready,
    )
    return _frame(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=body))


class Receipts(NamedTuple):
    """The receipts of entries that follow each other.

    Attributes:
        sequence_id: The sequence id of the first entry.
        step: The difference between the sequence ids of two entries; at least 1.
        highest_sequence_id: The highest sequence id of each entry; 0 if the client sent none.
        ledger_id: The ledger of the entries.
        entry_id: The id of the first entry; the ids of the others follow it.
        entries: The number of entries; at least 1.
    """

    sequence_id: int
    step: int
    highest_sequence_id: int
    ledger_id: int
    entry_id: int
    entries: int

    def singles(self) -> Iterator[Receipts]:
        """Yield the receipt of each entry."""
        for number in range(self.entries):
            at = self.sequence_id + number * self.step
            yield self._replace(sequence_id=at, entry_id=self.entry_id + number, entries=1)


def send_receipts(producer_id: int, runs: Iterable[Receipts]) -> bytes:
    """Encode SEND_RECEIPT: an entry is stored. Returns the joined frames of one command for each entry.

    The commands are encoded without protobuf objects, which would cost five times as much. The bytes before the numbers
    of a command depend only on the lengths of the encoded numbers, so they are encoded once for many commands.

    Args:
        producer_id: The client's id of the producer.
        runs: The receipts, in the order of sending.
    """
    producer = b"\x08" + varint(producer_id) + b"\x10"
    parts: list[bytes] = []
    made: dict[tuple[int, int, int, int], tuple[bytes, bytes]] = {}
    for sequence_id, step, highest, ledger_id, entry_id, entries in runs:
        last = b"\x20" + varint(highest)
        for sequence, entry in islice(zip(varints(sequence_id, step), varints(entry_id, 1), strict=False), entries):
            kind = ledger_id, len(sequence), len(entry), len(last)
            before = made.get(kind)
            if before is None:
                ledger = b"\x08" + varint(ledger_id) + b"\x10"
                message_id = b"\x1a" + varint(len(ledger) + len(entry)) + ledger
                size = len(producer) + len(sequence) + len(message_id) + len(entry) + len(last)
                tags = b"\x08\x07\x3a" + varint(size)
                made[kind] = before = head_of(len(tags) + size) + tags + producer, message_id
            parts += (before[0], sequence, before[1], entry, last)
    return b"".join(parts)


def send_error(producer_id: int, sequence_id: int, error: ServerError, message: str) -> bytes:
    """Encode SEND_ERROR: an entry was refused. C++ clients close the connection unless the error is a ChecksumError."""
    body = CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=error, message=message)
    return _frame(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=body))


def message_head(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    consumer_epoch: int | None,
    entry_bytes: int,
) -> bytes:
    """Encode MESSAGE without the entry, which the caller sends next. This avoids the cost of protobuf objects.

    Args:
        consumer_id: The client's id of the consumer.
        ledger: Ledger id.
        entry: Entry id.
        partition: Partition index; -1 if the topic is not a partition.
        redelivery_count: Number of earlier deliveries of the entry.
        ack_set: Words of 64 bits with a 1 for each unacknowledged message, the first message in the lowest bit; empty
            if no message of the entry is acknowledged.
        consumer_epoch: The epoch from the consumer's last request; None if the consumer sent no epoch.
        entry_bytes: Size of the entry, in bytes.
    """
    message_id = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
    if partition >= 0:
        message_id += b"\x18" + varint(partition)
    body = b"".join((b"\x08", varint(consumer_id), b"\x12", varint(len(message_id)), message_id))
    if redelivery_count:
        body += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        body += b"\x20" + varint(word)
    if consumer_epoch is not None:
        body += b"\x28" + varint(consumer_epoch)
    return _by_hand(b"\x08\x09\x4a", body, entry_bytes)


def ack_response(
    consumer_id: int, request_id: int, error: ServerError | None = None, message: str | None = None
) -> bytes:
    """Encode ACK_RESPONSE: the acknowledgement is durable if `error` is None, else it was refused."""
    body = CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=error, message=message)
    return _frame(BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse=body))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    """Encode ACTIVE_CONSUMER_CHANGE (from protocol version 12): a Failover subscription has a new active consumer.

    Args:
        consumer_id: The client's id of the consumer that gets the command.
        is_active: True if this consumer is the active one.
    """
    body = CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return _frame(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=body))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Encode REACHED_END_OF_TOPIC: the topic is terminated and read to its end. C++ and Python clients ignore it."""
    body = CommandReachedEndOfTopic(consumer_id=consumer_id)
    return _frame(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=body))


def close_producer(producer_id: int) -> bytes:
    """Encode CLOSE_PRODUCER: the client must look the topic up again, and reconnect."""
    body = CommandCloseProducer(producer_id=producer_id, request_id=NO_REQUEST_ID)
    return _frame(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=body))


def close_consumer(consumer_id: int) -> bytes:
    """Encode CLOSE_CONSUMER: the client must look the topic up again, and reconnect."""
    body = CommandCloseConsumer(consumer_id=consumer_id, request_id=NO_REQUEST_ID)
    return _frame(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=body))


def get_last_message_id_response(
    request_id: int,
    ledger: int,
    entry: int,
    *,
    partition: int = -1,
    batch_index: int = -1,
    mark_delete: tuple[int, int] | None = None,
) -> bytes:
    """Encode GET_LAST_MESSAGE_ID_RESPONSE: the last message's id, and the subscription's mark-delete position.

    Args:
        request_id: The id of the client's request.
        ledger: Ledger id; -1 if the topic is empty.
        entry: Entry id; -1 if the topic is empty.
        partition: Partition index; -1 if the topic is not a partition.
        batch_index: Index of the last message in its batch; -1 if the entry is not a batch.
        mark_delete: The subscription's mark-delete position, as (ledger id, entry id); None to send no position.
    """
    body = CommandGetLastMessageIdResponse(
        request_id=request_id,
        last_message_id=_message_id(ledger, entry, partition, batch_index),
        consumer_mark_delete_position=None if mark_delete is None else _message_id(*mark_delete),
    )
    return _frame(BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=body))


def get_topics_of_namespace_response(
    request_id: int, topics: Iterable[str], topics_hash: str | None, *, filtered: bool, changed: bool = True
) -> bytes:
    """Encode GET_TOPICS_OF_NAMESPACE_RESPONSE: the namespace's topics.

    Args:
        request_id: The id of the client's request.
        topics: Full names, with the name of each partition; empty if `changed` is False.
        topics_hash: Hash of all the names; None to send none.
        filtered: True if the broker applied the client's pattern.
        changed: False if `topics_hash` equals the hash in the client's request.
    """
    body = CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, topics_hash=topics_hash, filtered=filtered, changed=changed
    )
    return _frame(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=body))


def watch_topic_list_success(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    """Encode WATCH_TOPIC_LIST_SUCCESS: the matching topics, or none if the client's hash is current."""
    body = CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return _frame(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=body))


def watch_topic_update(watcher_id: int, new: Iterable[str], deleted: Iterable[str], topics_hash: str) -> bytes:
    """Encode WATCH_TOPIC_UPDATE: names of created and deleted topics, and the hash of all topics that match now."""
    body = CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=topics_hash
    )
    return _frame(BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE, watchTopicUpdate=body))


def get_schema_response(request_id: int, schema: Schema, schema_version: bytes) -> bytes:
    """Encode GET_SCHEMA_RESPONSE: a schema and its version."""
    body = CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=schema_version)
    return _frame(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=body))


def get_schema_failed(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode GET_SCHEMA_RESPONSE: the request failed. If the topic lacks the schema, clients expect TopicNotFound."""
    body = CommandGetSchemaResponse(request_id=request_id, error_code=error, error_message=message)
    return _frame(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=body))


def get_or_create_schema_response(request_id: int, schema_version: bytes) -> bytes:
    """Encode GET_OR_CREATE_SCHEMA_RESPONSE: the version of the client's schema."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=schema_version)
    return _frame(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=body))


def get_or_create_schema_failed(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode GET_OR_CREATE_SCHEMA_RESPONSE: the schema was refused."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=error, error_message=message)
    return _frame(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=body))


def consumer_stats_response(stats: CommandConsumerStatsResponse) -> bytes:
    """Encode CONSUMER_STATS_RESPONSE: a consumer's statistics."""
    return _frame(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=stats))


def consumer_stats_failed(request_id: int, error: ServerError, message: str) -> bytes:
    """Encode CONSUMER_STATS_RESPONSE: the broker has no such consumer."""
    return consumer_stats_response(
        CommandConsumerStatsResponse(request_id=request_id, error_code=error, error_message=message)
    )


def _frame(command: BaseCommand) -> bytes:
    return frame_of(command.SerializeToString())


def _by_hand(tags: bytes, body: bytes, entry_bytes: int = 0) -> bytes:
    """Return the frame of a command, without its entry, from encoded parts.

    Args:
        tags: The command's encoded type and the tag of its body.
        body: The encoded body.
        entry_bytes: Size of the entry that the caller sends after the frame; 0 for none.
    """
    return frame_of(tags + varint(len(body)) + body, entry_bytes)


def _message_id(ledger: int, entry: int, partition: int = -1, batch_index: int = -1) -> MessageIdData:
    return MessageIdData(
        ledgerId=ledger & _64_BITS,
        entryId=entry & _64_BITS,
        partition=None if partition == -1 else partition,
        batch_index=None if batch_index == -1 else batch_index,
    )


_PING = _frame(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
_PONG = _frame(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
