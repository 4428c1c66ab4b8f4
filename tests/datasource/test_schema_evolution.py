"""Messages of older schema versions, and schemas that only clients understand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pulsar_on_spark import Root
from pulsar_on_spark.datasource.options import Typed
from pulsar_on_spark.datasource.typed import TypedValues, typed_values
from pulsar_on_spark.model.errors import IncompatibleSchemaError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from tests.datasource.conftest import Read, Write

T = TopicName.parse("t")


def record(*fields: dict[str, object]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


CARRIER = {"name": "carrier", "type": "string"}
DELAY = {"name": "delay", "type": "int", "default": -1}
GATE = {"name": "gate", "type": ["null", "string"], "default": None}
OLD = record(CARRIER, DELAY)
NEW = record(GATE, DELAY | {"type": "long"}, CARRIER)


def datum(schema: dict[str, Any], **values: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), values)
    return stream.getvalue()


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def batch(*rows: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    values, versions = zip(*rows, strict=True)
    columns = [pa.array(values, pa.binary()), pa.array(versions, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["value", "schema_version"])


@pytest.fixture
def made(root: Path) -> Root:
    made = Root.create(root)
    made.create_topic("t", 2)
    return made


def typed(made: Root, mode: str = "PERMISSIVE") -> TypedValues:
    records = registry.versions(made.store.view(), T)
    found = typed_values(Typed(None, None, mode), records[-1], WriterSchemas.of(made.path, records))
    assert found is not None
    return found


def read(values: TypedValues, rows: pa.RecordBatch) -> list[dict[str, object] | None]:
    return (
        values.decoder(values.schema.read_type.names).decode(rows, T.partition(1).full, "message {}".format).to_pylist()
    )


def row(carrier: str, delay: int, gate: str | None = None) -> dict[str, object]:
    return {"gate": gate, "delay": delay, "carrier": carrier}


def test_each_value_is_read_as_it_was_written(made: Root) -> None:
    for schema in (OLD, NEW):
        registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(schema)), Strategy.BACKWARD)
    rows = batch(
        (datum(NEW, gate="A1", delay=1 << 40, carrier="UA"), version(1)),
        (datum(OLD, carrier="DL", delay=5), version(0)),
        (None, version(0)),
        (datum(NEW, gate=None, delay=2, carrier="AA"), None),
        (datum(OLD, carrier="B6", delay=7), version(0)),
        (b"\xff", version(0)),
    )
    expected = [row("UA", 1 << 40, "A1"), row("DL", 5), None, row("AA", 2), row("B6", 7), None]
    assert read(typed(made), rows) == expected
    assert read(typed(made), rows.slice(1, 1)) == expected[1:2]


def test_records_that_were_renamed_are_read_by_their_fields(made: Root) -> None:
    def flight(name: str, leg: str) -> dict[str, Any]:
        inner = {**record({"name": "to", "type": "string"}), "name": leg}
        stops = {"name": "stops", "type": {"type": "array", "items": inner}}
        last = {"name": "last", "type": ["null", leg], "default": None}
        return {**record(stops, last), "name": name, "namespace": f"of.{name}"}

    old, new = flight("Flight", "Leg"), flight("Journey", "Hop")
    for schema in (old, new):
        registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(schema)))
    values = {"stops": [{"to": "JFK"}, {"to": "LAX"}], "last": {"to": "SFO"}}
    rows = batch((datum(old, **values), version(0)), (datum(new, **values), version(1)))
    assert read(typed(made, "FAILFAST"), rows) == [values, values]


def test_a_version_that_is_younger_than_the_read_is_looked_up(made: Root) -> None:
    registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(OLD)))
    before = typed(made)
    registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(NEW)), Strategy.BACKWARD)
    younger = batch((datum(NEW, gate="A1", delay=3, carrier="UA"), version(1)))
    with pytest.raises(IncompatibleSchemaError, match="message 0"):
        read(typed(made, "FAILFAST"), batch((b"", version(1))))
    assert read(before, younger) == [None], "a long is not read as an int"
    made.create_topic("u")
    added = json.dumps(record(*OLD["fields"], GATE))
    registry.add_schema(made.store, T, TopicSchema("AVRO", added), Strategy.ALWAYS_COMPATIBLE)
    assert read(before, batch((datum(json.loads(added), carrier="UA", delay=3, gate="x"), version(2)))) == [
        {"carrier": "UA", "delay": 3}
    ]


def test_versions_that_cannot_be_read(made: Root) -> None:
    registry.add_schema(made.store, T, TopicSchema("STRING", ""))
    registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(OLD)), Strategy.ALWAYS_COMPATIBLE)
    good = (datum(OLD, carrier="UA", delay=1), version(1))
    rows = batch((b"text", version(0)), good, (b"x", version(9)), (b"x", b"odd"))
    assert read(typed(made), rows) == [None, {"carrier": "UA", "delay": 1}, None, None]
    for bad, why in ((0, "message 0 was written as STRING"), (2, "message 0 was written with an unknown version")):
        with pytest.raises(IncompatibleSchemaError, match=why):
            read(typed(made, "FAILFAST"), rows.slice(bad, 1))
    with pytest.raises(IncompatibleSchemaError, match="message 3"):
        read(typed(made, "FAILFAST"), batch(good, good, good, (b"x", version(0))))


def test_two_topics_number_their_versions_apart(made: Root) -> None:
    made.create_topic("u")
    registry.add_schema(made.store, T, TopicSchema("AVRO", json.dumps(OLD)))
    other = TopicName.parse("u")
    swapped = record(DELAY, CARRIER)
    for schema in (swapped, OLD):
        registry.add_schema(made.store, other, TopicSchema("AVRO", json.dumps(schema)), Strategy.ALWAYS_COMPATIBLE)
    records = [each for name in (T, other) for each in registry.versions(made.store.view(), name)]
    found = typed_values(Typed(None, None, "PERMISSIVE"), records[0], WriterSchemas.of(made.path, records))
    assert found is not None
    rows = batch((datum(swapped, carrier="UA", delay=3), version(0)))
    assert found.decoder(found.schema.read_type.names).decode(rows, other.full, str).to_pylist() == [
        {"carrier": "UA", "delay": 3}
    ]
    assert found.decoder(found.schema.read_type.names).decode(rows, T.full, str).to_pylist() == [None]


def test_spark_reads_all_versions_of_a_topic(spark: SparkSession, write: Write, read: Read, root: Path) -> None:
    made = Root.open_or_create(root)
    made.create_topic("flights")
    made.declare_schema("flights", json.dumps(OLD), "AVRO")
    write(spark.sql("SELECT 'UA' carrier, 5 delay"), "flights")
    made.declare_schema("flights", json.dumps(record(GATE, CARRIER, DELAY)), "AVRO")
    write(spark.sql("SELECT 'DL' carrier, 6 delay, 'A1' gate"), "flights")
    found = read("flights", includeMetadata=True, mode="FAILFAST").orderBy("delay")
    assert [tuple(each) for each in found.select("gate", "carrier", "delay", "__schemaVersion").collect()] == [
        (None, "UA", 5, 0),
        ("A1", "DL", 6, 1),
    ]
    assert read("flights", columns="carrier").count() == 2


def test_a_schema_without_columns_leaves_values_as_bytes(
    spark: SparkSession, write: Write, read: Read, root: Path
) -> None:
    made = Root.open_or_create(root)
    made.create_topic("nodes")
    nodes = record({"name": "next", "type": ["null", "R"]})
    registry.add_schema(made.store, TopicName.parse("nodes"), TopicSchema("AVRO", json.dumps(nodes)))
    write(spark.sql("SELECT 'x' value"), "nodes")
    assert [bytes(each["value"]) for each in read("nodes").collect()] == [b"x"]
