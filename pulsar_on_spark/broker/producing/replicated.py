"""Entries that another cluster's replicator sends: their deduplication and their receipts. Pure.

Pulsar's rules (its `MessageDeduplication` and `Producer`). A replicator sends **positions** if both ends support it
(feature flag `supports_repl_dedup_by_lid_and_eid`) and the topic is persistent; an older one does not:

    sent by the producer `pulsar.repl.<source>--><here>`    deduplicated by                     its receipt
    ─────────────────────────────────────────────────────   ─────────────────────────────────   ─────────────────────
    positions: an entry with the property of its position   source, ledger and entry there      sequence id = ledger,
                                                                                                highest = entry there
    positions: a marker of replicated subscriptions         nothing                             as sent, highest 2^63
    positions: anything else                                refused                             PersistenceError
    older: an entry                                         its first producer's name and       as sent
                                                            sequence ids, from its metadata
    older: a marker                                         nothing                             as sent

The deduplication key of an entry follows from its metadata alone (`identity_of`), so a replay finds the same key. A
marker is written by a cluster and not by a client: it is never deduplicated, and counts as no message.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsar_on_spark.broker.producing.dedup import Sender, Source, position_number
from pulsar_on_spark.broker.producing.sequence_ids import last_sequence_id
from pulsar_on_spark.protocol.entry_frame import split_entry
from pulsar_on_spark.protocol.messages import MessageMetadata, as_text
from pulsar_on_spark.protocol.server import Sent

REPLICATOR_PREFIX: Final = "pulsar.repl."
"""Prefix of replicators' names, as producers and as subscriptions (`replicatorPrefix`)."""
POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The property with an entry's position in its source: `<ledger>:<entry>`."""
MARKER_RECEIPT: Final = 1 << 63
"""The highest sequence id in the receipt of a marker; Java reads it as the lowest signed 64-bit number."""
_DELIMITER: Final = "-->"
_SUBSCRIPTION_MARKERS: Final = range(10, 14)
"""`marker_type` of replicated subscriptions: snapshot request, snapshot response, snapshot, update."""
_MAX_ID: Final = (1 << 63) - 1


class Replication(Enum):
    """The way in which a replicator's entries are deduplicated and answered; see the module."""

    BY_POSITION = auto()
    BY_SEQUENCE_ID = auto()


class Identity(NamedTuple):
    """The key that deduplicates an entry.

    Attributes:
        sender: The name of the entry's producer, or the cluster whose replicator sent it.
        first: Sequence id of the entry's first message.
        last: Sequence id of the entry's last message.
        is_part: True for a chunk that is not the last one of its message: chunks share a sequence id.
    """

    sender: Sender
    first: int
    last: int
    is_part: bool


def is_replicator(name: str) -> bool:
    """Return True if the name of a producer or subscription belongs to another cluster's replicator."""
    return name.startswith(REPLICATOR_PREFIX)


def source_cluster(name: str) -> str:
    """Return the name of the cluster from which the replicator with this producer name sends entries."""
    return name.removeprefix(REPLICATOR_PREFIX).split(_DELIMITER)[0]


def identity_of(entry: bytes) -> Identity | None:
    """Return the identity in an entry's metadata; None for a marker, or an entry without a producer's name."""
    bounds = split_entry(entry)
    metadata = None if bounds is None else _metadata(entry, bounds)
    if bounds is None or metadata is None or metadata.HasField("marker_type"):
        return None
    at = source_position(metadata)
    if at is not None:
        number = position_number(*at)
        return Identity(Source(as_text(metadata.replicated_from)), number, number, is_part=False)
    if not metadata.producer_name:
        return None
    last = last_sequence_id(metadata, memoryview(entry)[bounds[1] :])
    is_part = metadata.num_chunks_from_msg > 1 and metadata.chunk_id + 1 < metadata.num_chunks_from_msg
    return Identity(as_text(metadata.producer_name), metadata.sequence_id, last, is_part)


def source_position(metadata: MessageMetadata) -> tuple[int, int] | None:
    """Return ledger and entry id of a replicated entry in its source; None without a source or a valid position."""
    if not metadata.replicated_from:
        return None
    text = next((as_text(pair.value) for pair in metadata.properties if pair.key == POSITION_PROPERTY), "")
    ledger, _, entry = text.partition(":")
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in (ledger, entry)):
        return None
    at = int(ledger), int(entry)
    return at if max(at) <= _MAX_ID else None


def received(sent: Sent, name: str, replication: Replication | None) -> Sent | None:
    """Return an entry of a replicator, or an entry sent as a marker, with the sequence ids of its receipt.

    Args:
        sent: The entry as received.
        name: The name of the entry's producer.
        replication: The deduplication of a replicator's entries; None for any other producer.

    Returns:
        The entry; `marker` is true only for a real marker, which has no messages. None if the entry must be refused:
        with `BY_POSITION`, its metadata has no valid position, another source, or an unknown marker type.
    """
    bounds = split_entry(sent.entry)
    metadata = None if bounds is None else _metadata(sent.entry, bounds)
    if metadata is None:
        return None if replication is Replication.BY_POSITION else sent._replace(marker=False)
    is_marker = sent.marker and metadata.HasField("marker_type")
    sent = sent._replace(marker=is_marker, num_messages=0 if is_marker else sent.num_messages)
    if replication is not Replication.BY_POSITION:
        return sent
    if is_marker:
        is_known = metadata.marker_type in _SUBSCRIPTION_MARKERS
        return sent._replace(highest_sequence_id=MARKER_RECEIPT) if is_known else None
    at = source_position(metadata)
    if at is None or metadata.replicated_from != source_cluster(name):
        return None
    return sent._replace(sequence_id=at[0], highest_sequence_id=at[1])


def _metadata(entry: bytes, bounds: tuple[int, int]) -> MessageMetadata | None:
    try:
        return MessageMetadata.FromString(entry[slice(*bounds)])
    except DecodeError:
        return None
