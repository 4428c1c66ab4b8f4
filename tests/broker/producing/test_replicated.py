"""The identity by which an entry is deduplicated, and the sequence ids in a replicator's receipts."""

from __future__ import annotations

import pytest

from pulsar_on_spark.broker.producing.dedup import Source, position_number
from pulsar_on_spark.broker.producing.replicated import (
    POSITION_PROPERTY,
    Identity,
    Replication,
    identity_of,
    is_replicator,
    received,
    source_cluster,
    source_position,
)
from pulsar_on_spark.protocol.entry_frame import join_entry
from pulsar_on_spark.protocol.messages import MessageMetadata
from pulsar_on_spark.protocol.server import Sent

POSITION, SEQUENCE_ID = Replication
NAME = "pulsar.repl.peer-->here"


def entry(position: str | None = "7:1", **metadata: object) -> bytes:
    return join_entry(metadata_of(position, **metadata).SerializeToString(), b"v")


def metadata_of(position: str | None = "7:1", **metadata: object) -> MessageMetadata:
    fields: dict[str, object] = {"producer_name": "p", "sequence_id": 5, "publish_time": 1, "replicated_from": "peer"}
    properties = [] if position is None else [{"key": POSITION_PROPERTY, "value": position}]
    return MessageMetadata(properties=properties, **(fields | metadata))


def sent(data: bytes, *, marker: bool = False) -> Sent:
    return Sent(1, 40, 0, 3, False, marker, 0, 0, [data], True)


@pytest.mark.parametrize(
    ("name", "cluster"), [("pulsar.repl.peer-->here", "peer"), ("pulsar.repl.peer", "peer"), ("pulsar.repl.a-b", "a-b")]
)
def test_a_replicators_name_has_its_cluster(name: str, cluster: str) -> None:
    assert is_replicator(name)
    assert source_cluster(name) == cluster


@pytest.mark.parametrize("name", ["pulsar.replica", "pulsar.repl", "p", "", "xpulsar.repl.peer"])
def test_other_names_are_no_replicators(name: str) -> None:
    assert not is_replicator(name)


def test_a_replicated_entry_has_its_position_in_the_source() -> None:
    assert source_position(metadata_of("9223372036854775807:0")) == (2**63 - 1, 0)
    texts = ("", ":", "7", "7:", ":1", "7:1:2", "-7:1", "+7:1", " 7:1", "7:x", "\u0667:1", "9223372036854775808:0")
    assert [source_position(metadata_of(text)) for text in (*texts, "7:" + "1" * 5_000)] == [None] * (len(texts) + 1)
    assert source_position(metadata_of("7:1", replicated_from="")) is None
    twice = metadata_of("7:1")
    twice.properties.add(key=POSITION_PROPERTY, value="8:1")
    assert source_position(twice) == (7, 1), "the first one counts, as in Pulsar"


@pytest.mark.parametrize(
    ("data", "identity"),
    [
        (entry(), Identity(Source("peer"), position_number(7, 1), position_number(7, 1), is_part=False)),
        (
            entry(chunk_id=0, num_chunks_from_msg=2),
            Identity(Source("peer"), position_number(7, 1), position_number(7, 1), False),
        ),
        (entry(None), Identity("p", 5, 5, is_part=False)),
        (entry("no position", highest_sequence_id=9), Identity("p", 5, 9, is_part=False)),
        (entry(None, chunk_id=0, num_chunks_from_msg=2), Identity("p", 5, 5, is_part=True)),
        (entry(None, chunk_id=1, num_chunks_from_msg=2), Identity("p", 5, 5, is_part=False)),
        (entry(replicated_from=""), Identity("p", 5, 5, is_part=False)),
        (entry(None, producer_name=""), None),
        (entry(marker_type=10), None),
        (b"", None),
        (b"\x00\x00\x00\x01\xff", None),
    ],
)
def test_a_replicated_entry_has_its_deduplication_key(data: bytes, identity: Identity | None) -> None:
    assert identity_of(data) == identity


def test_receipts_of_positions_and_of_markers() -> None:
    def numbers(given: Sent, replication: Replication | None) -> tuple[int, int, int, bool] | None:
        prepared = received(given, NAME, replication)
        return prepared and (prepared.sequence_id, prepared.highest_sequence_id, prepared.num_messages, prepared.marker)

    assert numbers(sent(entry()), POSITION) == (7, 1, 3, False)
    assert numbers(sent(entry()), SEQUENCE_ID) == (40, 0, 3, False)
    marker = entry(None, marker_type=13)
    assert numbers(sent(marker, marker=True), POSITION) == (40, 2**63, 0, True)
    assert numbers(sent(marker, marker=True), SEQUENCE_ID) == (40, 0, 0, True)
    assert numbers(sent(marker, marker=True), None) == (40, 0, 0, True)
    assert numbers(sent(entry(), marker=True), None) == (40, 0, 3, False), "its entry is no marker"
    assert numbers(sent(entry(), marker=True), POSITION) == (7, 1, 3, False)
    assert numbers(sent(entry(None, marker_type=22), marker=True), POSITION) is None
    assert numbers(sent(entry(None)), POSITION) is None
    assert numbers(sent(entry(replicated_from="other")), POSITION) is None
    assert numbers(sent(b"\x00\x00\x00\x01\xff"), POSITION) is None
    assert numbers(sent(b"\x00\x00\x00\x01\xff", marker=True), None) == (40, 0, 3, False)
