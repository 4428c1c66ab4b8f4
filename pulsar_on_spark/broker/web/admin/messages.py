"""Reading of single messages: the n-th of a backlog or of a topic, or by message id; and message ids by publish time.

The body of an answer is the entry's payload, decompressed; its metadata are headers under Pulsar's names. A batch is
sent whole, and clients split it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Response

from pulsar_on_spark.broker.observe.topic_stats import iso
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.topic import BrokerTopic
from pulsar_on_spark.broker.web.admin.ids import MessageIdJson
from pulsar_on_spark.broker.web.admin.peeks import open_peeked, peek_turn
from pulsar_on_spark.broker.web.admin.subscriptions import MISSING
from pulsar_on_spark.broker.web.paced_response import PacedResponse
from pulsar_on_spark.broker.web.requests import (
    TOPIC,
    BrokerServices,
    StoredTopic,
    SubscriptionName,
    refused,
    single,
)
from pulsar_on_spark.metadata.records import SubscriptionRecord, TopicRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId, Position
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.compression import Codec
from pulsar_on_spark.protocol.messages import MessageMetadata, as_text
from pulsar_on_spark.topic.managed_ledger.cursor.cursor import Cursor, EntryRange
from pulsar_on_spark.topic.managed_ledger.cursor.record import NO_RECORD, CursorRecord
from pulsar_on_spark.topic.managed_ledger.subscription.subscriptions import status

router = APIRouter(tags=["messages"])

_NO_TOPIC: Final = refused(404, "There is no such topic or message.")
_ENTRY: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The entry's payload."},
    **refused(413, "The payload is larger than three times the largest message."),
}
_IN_TURN: Final = [Depends(peek_turn)]
_Number = Annotated[int, Path(ge=0, le=2**63 - 1)]
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@router.get(
    f"{TOPIC}/subscription/{{subscription}}/position/{{position}}", responses=MISSING | _ENTRY, dependencies=_IN_TURN
)
async def peek(
    services: BrokerServices,
    name: StoredTopic,
    subscription: SubscriptionName,
    position: Annotated[int, Path(ge=1, le=2**31 - 1)],
) -> Response:
    """Return the n-th entry, from 1, of a subscription's backlog, without moving its cursor.

    If the subscription is missing, its backlog is the whole topic, and it is not created; Pulsar would create it at the
    first message.
    """
    view = await services.views.view()
    part = single(view, name, "Peeking")
    topic = await _loaded(services, part)
    cursor = await _cursor(services, view, topic, part, subscription)
    backlog = cursor.deliverable(cursor.mark_delete, position)
    if sum(range_.end - range_.first for range_ in backlog.ranges) < position:
        raise HTTPException(
            404, f"Subscription {subscription!r} on {name} has fewer than {position} entries in its backlog."
        )
    last = backlog.ranges[-1]
    return await _entry(services, topic, Position(last.ledger, EntryId(last.end - 1)))


@router.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", responses=_NO_TOPIC | _ENTRY, dependencies=_IN_TURN)
async def entry_by_id(services: BrokerServices, name: StoredTopic, ledger: _Number, entry: _Number) -> Response:
    """Return the entry with this ledger id and entry id."""
    topic = await _loaded(services, single(await services.views.view(), name, "A message id"))
    if not topic.chain.holds_entry(ledger, entry):
        raise HTTPException(
            404, f"Entry {ledger}:{entry} of {name} does not exist or was trimmed: give another ledger and entry."
        )
    return await _entry(services, topic, Position(LedgerId(ledger), EntryId(entry)))


@router.get(f"{TOPIC}/examinemessage", responses=_NO_TOPIC | _ENTRY, dependencies=_IN_TURN)
async def examine(
    services: BrokerServices,
    name: StoredTopic,
    start: Annotated[Literal["earliest", "latest"], Query(alias="initialPosition")] = "latest",
    number: Annotated[int, Query(alias="messagePosition", ge=1, le=2**31 - 1)] = 1,
) -> Response:
    """Return the n-th entry, from 1, counted from the topic's start or from its end."""
    topic = await _loaded(services, single(await services.views.view(), name, "Examining"))
    chain = topic.chain
    entries = chain.entries_from(chain.start.ledger, chain.start.entry)
    index = number - 1 if start == "earliest" else entries - number
    if not 0 <= index < entries:
        raise HTTPException(
            404, f"Topic {name} has {entries} entries, so messagePosition {number} does not exist: give a smaller one."
        )
    begin = CursorRecord("snapshot", topic.topic_id, "", 1, NO_RECORD, chain.start)
    last = Cursor(chain, begin).deliverable(chain.start, index + 1).ranges[-1]
    return await _entry(services, topic, Position(last.ledger, EntryId(last.end - 1)))


@router.get(f"{TOPIC}/messageid/{{timestamp_ms}}", responses=_NO_TOPIC)
async def id_at(
    services: BrokerServices, name: StoredTopic, timestamp_ms: Annotated[int, Path(ge=0, le=2**53)]
) -> MessageIdJson:
    """Return the id of the first message published at `timestamp_ms` or later, else the id of the last message."""
    topic = await _loaded(services, single(await services.views.view(), name, "A message id"))
    position = await services.reader.position_at(topic.part, topic.chain, timestamp_ms)
    at = position if topic.chain.holds_entry(position.ledger, position.entry) else topic.chain.entry_before(position)
    if at is None:
        raise HTTPException(404, f"Topic {name} has no messages.")
    return MessageIdJson.of(MessageId(at.ledger, at.entry, topic.part.partition))


@router.get(f"{TOPIC}/lastMessageId", responses=refused(404, "There is no such topic."))
async def last_id(services: BrokerServices, name: StoredTopic) -> MessageIdJson:
    """Return the id of the last message; (-1, -1) if the topic is empty."""
    topic = await _loaded(services, single(await services.views.view(), name, "A message id"))
    last = await services.reader.last_message_id(topic.part, topic.chain)
    nothing = MessageId(LedgerId(-1), EntryId(-1), topic.part.partition)
    return MessageIdJson.of(nothing if last is None else last)


# ----------------------------------------------------------------------------------------------------------------------


async def _loaded(services: Services, part: TopicRecord) -> BrokerTopic:
    topic = await services.topics.get(TopicName.parse(part.name))
    assert isinstance(topic, BrokerTopic), "it is stored"
    await topic.wait_until_readable()
    return topic


async def _cursor(services: Services, view: View, topic: BrokerTopic, part: TopicRecord, name: str) -> Cursor:
    """Return the cursor of the subscription if this broker has loaded it, else a copy from the metadata.

    The cursor of a missing subscription is at the topic's start.
    """
    live = topic.subscriptions.get(name)
    if live is not None:
        return live.kept.cursor
    record = view.get(SubscriptionRecord, f"{part.topic_id}/{name}")
    if record is None:
        return Cursor(topic.chain, CursorRecord("snapshot", topic.topic_id, name, 1, NO_RECORD, topic.chain.start))
    at = status(view, services.root.store.cursors(), topic.part, record).mark_delete
    return Cursor(topic.chain, CursorRecord("snapshot", topic.topic_id, name, 1, NO_RECORD, at))


async def _entry(services: Services, topic: BrokerTopic, at: Position) -> Response:
    only = EntryRange(at.ledger, at.entry, at.entry + 1)
    (stored,) = await services.reader.read(topic.part, [only], 1, 0)
    metadata, payload = await open_peeked(services, at, stored.data)
    shown = PacedResponse(payload)
    shown.raw_headers.append((b"X-Pulsar-Message-ID", f"{at.ledger}:{at.entry}".encode()))
    for name, value in _headers(metadata, len(payload)):
        shown.raw_headers.append((name.encode(), _header_value(value)))
    return shown


_AS_TEXT: Final = {
    "producer_name": "X-Pulsar-producer-name",
    "sequence_id": "X-Pulsar-sequence-id",
    "highest_sequence_id": "X-Pulsar-highest-sequence-id",
    "partition_key": "X-Pulsar-partition-key",
    "partition_key_b64_encoded": "X-Pulsar-partition-key-b64-encoded",
    "null_partition_key": "X-Pulsar-null-partition-key",
    "null_value": "X-Pulsar-null-value",
    "num_messages_in_batch": "X-Pulsar-num-batch-message",
    "replicated_from": "X-Pulsar-replicated-from",
    "marker_type": "X-Pulsar-marker-type",
    "uuid": "X-Pulsar-uuid",
    "chunk_id": "X-Pulsar-chunk-id",
    "num_chunks_from_msg": "X-Pulsar-num-chunks-from-msg",
    "total_chunk_msg_size": "X-Pulsar-total-chunk-msg-size",
    "uncompressed_size": "X-Pulsar-uncompressed-size",
    "encryption_algo": "X-Pulsar-encryption-algo",
}
_AS_TIME: Final = {
    "publish_time": "X-Pulsar-publish-time",
    "event_time": "X-Pulsar-event-time",
    "deliver_at_time": "X-Pulsar-deliver-at-time",
}
_AS_BASE64: Final = {
    "ordering_key": "X-Pulsar-Base64-ordering-key",
    "schema_version": "X-Pulsar-Base64-schema-version-b64encoded",
    "encryption_param": "X-Pulsar-Base64-encryption-param",
}


def _headers(metadata: MessageMetadata, payload_bytes: int) -> Iterator[tuple[str, str]]:
    properties = {as_text(pair.key): as_text(pair.value) for pair in metadata.properties}
    if properties:
        yield "X-Pulsar-PROPERTY", json.dumps(properties)
        # Older clients look for one header per property.
        for key, value in properties.items():
            if _HEADER_NAME.fullmatch(key):
                yield f"X-Pulsar-PROPERTY-{key}", value
    for field, name in _AS_TEXT.items():
        if metadata.HasField(field):
            value = getattr(metadata, field)
            yield name, as_text(value) if isinstance(value, str | bytes) else str(value).lower()
    for field, name in _AS_TIME.items():
        if metadata.HasField(field) and (at_ms := getattr(metadata, field)) < _LAST_MS:
            yield name, iso(at_ms / 1000)
    for field, name in _AS_BASE64.items():
        if metadata.HasField(field):
            yield name, base64.b64encode(getattr(metadata, field)).decode()
    if metadata.HasField("num_messages_in_batch"):
        yield "X-Pulsar-batch-size", str(payload_bytes)
    if metadata.HasField("compression") and metadata.compression in set(Codec):
        yield "X-Pulsar-compression", Codec(metadata.compression).name
    yield "X-Pulsar-Is-Encrypted", str(bool(metadata.encryption_keys)).lower()


_LAST_MS: Final = 253_402_300_800_000
"""The first millisecond of the year 10000, which a date with a four-digit year cannot express."""


def _header_value(text: str) -> bytes:
    """Encode a client's text as a header value: UTF-8, with each control character replaced by a space."""
    return "".join(letter if letter.isprintable() else " " for letter in text).encode().strip()
