"""Frames that Pulsar's own library made: a client's are decoded as recorded, and a broker's equal our replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from pulsar_on_spark.protocol import commands, replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    FeatureFlags,
    Schema,
    ServerError,
)
from pulsar_on_spark.protocol.frames import MAX_MESSAGE_SIZE_BYTES
from pulsar_on_spark.protocol.replies import NO_REQUEST_ID, Receipts
from pulsar_on_spark.protocol.server import Command, ServerConnection

GOLDEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parent.parent / "golden" / "commands.json").read_text())

MINUS_ONE = 2**64 - 1
TOPIC = "persistent://public/default/t"
AT = {"ledgerId": 54321, "entryId": 987}
A_B = [{"key": "a", "value": "b"}]
ALWAYS_NULL = [{"key": "__alwaysAllowNull", "value": "true"}]
SCHEMA = Schema(name="s", schema_data=b'{"type":"string"}', type=Schema.Json, properties=ALWAYS_NULL)
VERSION = bytes((0, 0, 0, 0, 0, 0, 0, 3))

CLIENT: dict[str, tuple[int, Message]] = {
    "connect": (
        BaseCommand.CONNECT,
        commands.CommandConnect(
            client_version="4.2.4",
            auth_method_name="token",
            auth_data=b"secret",
            protocol_version=21,
            proxy_to_broker_url="broker:6650",
            original_principal="principal",
            original_auth_data="original",
            original_auth_method="tls",
            feature_flags=FeatureFlags(supports_auth_refresh=True, supports_topic_watchers=True),
        ),
    ),
    "ping": (BaseCommand.PING, commands.CommandPing()),
    "pong": (BaseCommand.PONG, commands.CommandPong()),
    "partitioned_metadata": (
        BaseCommand.PARTITIONED_METADATA,
        commands.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1, metadata_auto_creation_enabled=False),
    ),
    "lookup": (
        BaseCommand.LOOKUP,
        commands.CommandLookupTopic(topic=TOPIC, request_id=2, authoritative=True, advertised_listener_name="internal"),
    ),
    "producer": (
        BaseCommand.PRODUCER,
        commands.CommandProducer(
            topic=TOPIC,
            producer_id=3,
            request_id=4,
            producer_name="me",
            encrypted=True,
            metadata=A_B,
            schema=SCHEMA,
            epoch=5,
            user_provided_producer_name=True,
            producer_access_mode=commands.ProducerAccessMode.WaitForExclusive,
            topic_epoch=6,
            txn_enabled=True,
            initial_subscription_name="first",
        ),
    ),
    "producer_plain": (
        BaseCommand.PRODUCER,
        commands.CommandProducer(topic=TOPIC, producer_id=3, request_id=4, user_provided_producer_name=False),
    ),
    "subscribe": (
        BaseCommand.SUBSCRIBE,
        commands.CommandSubscribe(
            topic=TOPIC,
            subscription="sub",
            subType=CommandSubscribe.Key_Shared,
            consumer_id=7,
            request_id=8,
            consumer_name="me",
            priority_level=2,
            metadata=A_B,
            schema=SCHEMA,
            initialPosition=CommandSubscribe.Earliest,
            replicate_subscription_state=True,
            keySharedMeta=commands.KeySharedMeta(
                keySharedMode=commands.KeySharedMode.STICKY,
                hashRanges=[{"start": 0, "end": 99}, {"start": 200, "end": 65535}],
                allowOutOfOrderDelivery=True,
            ),
            subscription_properties=[{"key": "c", "value": "d"}],
            consumer_epoch=9,
        ),
    ),
    "subscribe_reader": (
        BaseCommand.SUBSCRIBE,
        commands.CommandSubscribe(
            topic=TOPIC,
            subscription="reader",
            subType=CommandSubscribe.Exclusive,
            consumer_id=7,
            request_id=8,
            consumer_name="me",
            durable=False,
            start_message_id={**AT, "partition": 1, "batch_index": 2},
            read_compacted=True,
            force_topic_creation=False,
            start_message_rollback_duration_sec=60,
            consumer_epoch=MINUS_ONE,
        ),
    ),
    "subscribe_earliest": (
        BaseCommand.SUBSCRIBE,
        commands.CommandSubscribe(
            topic=TOPIC,
            subscription="reader",
            subType=CommandSubscribe.Failover,
            consumer_id=7,
            request_id=8,
            consumer_name="me",
            durable=False,
            start_message_id={"ledgerId": MINUS_ONE, "entryId": MINUS_ONE},
            consumer_epoch=MINUS_ONE,
        ),
    ),
    "flow": (BaseCommand.FLOW, commands.CommandFlow(consumer_id=7, messagePermits=1000)),
    "ack": (
        BaseCommand.ACK,
        commands.CommandAck(consumer_id=7, ack_type=CommandAck.Individual, message_id=[AT]),
    ),
    "ack_batch_index": (
        BaseCommand.ACK,
        commands.CommandAck(
            consumer_id=7,
            ack_type=CommandAck.Individual,
            message_id=[{**AT, "ack_set": [-2, 3]}],
            request_id=11,
        ),
    ),
    "ack_cumulative": (
        BaseCommand.ACK,
        commands.CommandAck(
            consumer_id=7,
            ack_type=CommandAck.Cumulative,
            message_id=[AT],
            validation_error=CommandAck.ChecksumMismatch,
            request_id=12,
        ),
    ),
    "ack_many": (
        BaseCommand.ACK,
        commands.CommandAck(
            consumer_id=7,
            ack_type=CommandAck.Individual,
            message_id=[AT, {"ledgerId": 54321, "entryId": 988, "ack_set": [-2, 63]}],
            request_id=13,
        ),
    ),
    "redeliver": (
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        commands.CommandRedeliverUnacknowledgedMessages(
            consumer_id=7, message_ids=[AT, {"ledgerId": 54321, "entryId": 3}]
        ),
    ),
    "redeliver_all": (
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        commands.CommandRedeliverUnacknowledgedMessages(consumer_id=7, consumer_epoch=14),
    ),
    "new_txn": (BaseCommand.NEW_TXN, commands.CommandNewTxn(request_id=24)),
    "watch_topic_list": (
        BaseCommand.WATCH_TOPIC_LIST,
        commands.CommandWatchTopicList(
            request_id=25,
            watcher_id=26,
            namespace="public/default",
            topics_pattern="public/default/t.*",
            topics_hash="abcd",
        ),
    ),
    "unsubscribe": (
        BaseCommand.UNSUBSCRIBE,
        commands.CommandUnsubscribe(consumer_id=7, request_id=15, force=True),
    ),
    "seek": (
        BaseCommand.SEEK,
        commands.CommandSeek(consumer_id=7, request_id=16, message_id={**AT, "ack_set": [-4]}),
    ),
    "seek_time": (
        BaseCommand.SEEK,
        commands.CommandSeek(consumer_id=7, request_id=16, message_publish_time=1_753_500_000_000),
    ),
    "get_last_message_id": (
        BaseCommand.GET_LAST_MESSAGE_ID,
        commands.CommandGetLastMessageId(consumer_id=7, request_id=17),
    ),
    "close_producer": (BaseCommand.CLOSE_PRODUCER, commands.CommandCloseProducer(producer_id=3, request_id=18)),
    "close_consumer": (BaseCommand.CLOSE_CONSUMER, commands.CommandCloseConsumer(consumer_id=7, request_id=19)),
    "get_topics_of_namespace": (
        BaseCommand.GET_TOPICS_OF_NAMESPACE,
        commands.CommandGetTopicsOfNamespace(
            request_id=20,
            namespace="public/default",
            mode=commands.CommandGetTopicsOfNamespace.ALL,
            topics_pattern="public/default/t.*",
            topics_hash="abcd",
        ),
    ),
    "get_schema": (
        BaseCommand.GET_SCHEMA,
        commands.CommandGetSchema(request_id=21, topic=TOPIC, schema_version=VERSION),
    ),
    "get_newest_schema": (BaseCommand.GET_SCHEMA, commands.CommandGetSchema(request_id=21, topic=TOPIC)),
    "get_or_create_schema": (
        BaseCommand.GET_OR_CREATE_SCHEMA,
        commands.CommandGetOrCreateSchema(request_id=22, topic=TOPIC, schema=SCHEMA),
    ),
    "tc_client_connect_request": (
        BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        commands.CommandTcClientConnectRequest(request_id=23, tc_id=5),
    ),
}

BROKER: dict[str, bytes] = {
    "connected": replies.connected(
        "Pulsar Server4.2.4",
        21,
        MAX_MESSAGE_SIZE_BYTES,
        FeatureFlags(
            supports_get_partitioned_metadata_without_auto_creation=True, supports_repl_dedup_by_lid_and_eid=True
        ),
    ),
    "ping": replies.ping(),
    "pong": replies.pong(),
    "success": replies.success(1),
    "error": replies.error(NO_REQUEST_ID, ServerError.TopicNotFound, "no such topic"),
    "lookup_response": replies.lookup_response(2, "pulsar://b:6650", "pulsar+ssl://b:6651"),
    "lookup_redirect": replies.lookup_response(2, "pulsar://b:6650", redirect=True, authoritative=False),
    "lookup_failed": replies.lookup_failed(2, ServerError.ServiceNotReady, "not yet"),
    "partition_metadata_response": replies.partition_metadata_response(3, 8),
    "partition_metadata_failed": replies.partition_metadata_failed(3, ServerError.AuthorizationError, "not yours"),
    "producer_success": replies.producer_success(4, "me"),
    "producer_success_exclusive": replies.producer_success(
        4, "me", last_sequence_id=41, schema_version=VERSION, topic_epoch=7, producer_ready=False
    ),
    "send_receipt": replies.send_receipts(3, [Receipts(100000, 1, 100009, 54321, 987, 1)]),
    "send_receipt_not_stored": replies.send_receipts(3, [Receipts(1, 1, 0, -1, -1, 1)]),
    "send_error": replies.send_error(3, 100000, ServerError.ChecksumError, "broken"),
    "message": replies.message_head(7, 54321, 987, -1, 0, (), None, 4) + b"data",
    "message_redelivered": replies.message_head(7, 54321, 987, 3, 2, (-2, 3), 5, 4) + b"data",
    "ack_response": replies.ack_response(7, 11),
    "ack_refused": replies.ack_response(7, 11, ServerError.NotAllowedError, "no"),
    "active_consumer_change": replies.active_consumer_change(7, True),
    "inactive_consumer_change": replies.active_consumer_change(7, False),
    "reached_end_of_topic": replies.reached_end_of_topic(7),
    "close_producer": replies.close_producer(3),
    "close_consumer": replies.close_consumer(7),
    "get_last_message_id_response": replies.get_last_message_id_response(
        17, 54321, 987, partition=3, batch_index=9, mark_delete=(54321, -1)
    ),
    "get_topics_of_namespace_response": replies.get_topics_of_namespace_response(
        20, [TOPIC, TOPIC + "2"], "abcd", filtered=True
    ),
    "get_schema_response": replies.get_schema_response(21, SCHEMA, VERSION),
    "get_schema_failed": replies.get_schema_failed(21, ServerError.TopicNotFound, "none"),
    "get_or_create_schema_response": replies.get_or_create_schema_response(22, VERSION),
    "get_or_create_schema_failed": replies.get_or_create_schema_failed(22, ServerError.IncompatibleSchema, "other"),
}


def _meaning(message: Message) -> dict[str, Any]:
    """Return all fields as a reader sees them: an absent field has its default."""
    meaning: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            meaning[field.name] = [_meaning(one) if isinstance(one, Message) else one for one in value]
        elif field.message_type is None:
            meaning[field.name] = value
        elif message.HasField(field.name):
            meaning[field.name] = _meaning(value)
    return meaning


def _read(frame: bytes) -> tuple[dict[str, Any], bytes]:
    command_bytes = int.from_bytes(frame[4:8], "big")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return _meaning(BaseCommand.FromString(frame[8 : 8 + command_bytes])), frame[8 + command_bytes :]


@pytest.mark.parametrize("name", [name for name in GOLDEN["client"] if not name.startswith("send")])
def test_a_clients_golden_command_is_decoded_as_recorded(name: str) -> None:
    (event,) = ServerConnection().receive_data(bytes.fromhex(GOLDEN["client"][name]))
    assert isinstance(event, Command)
    number, body = CLIENT[name]
    assert event.type == number
    assert event.body is not None
    assert type(event.body) is type(body)
    assert _meaning(event.body) == _meaning(body)


@pytest.mark.parametrize("name", GOLDEN["broker"])
def test_our_reply_equals_that_of_pulsars_broker(name: str) -> None:
    assert _read(BROKER[name]) == _read(bytes.fromhex(GOLDEN["broker"][name]))


def test_every_reply_has_a_golden_copy() -> None:
    """Except for CONSUMER_STATS_RESPONSE, whose body is the caller's."""
    assert BROKER.keys() == GOLDEN["broker"].keys()
