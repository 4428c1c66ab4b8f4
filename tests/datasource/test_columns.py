"""Columns against what pyspark demands and against the values that went in."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from pulsar_on_spark.datasource.columns import METADATA_COLUMNS, build, select_columns
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EntryId, LedgerId, MessageId

TOPIC = "persistent://public/default/x"
MOMENT = datetime(2026, 11, 21, 7, 30, 1, 234_000, tzinfo=UTC)
ROWS = [
    {
        "entry_id": 0,
        "batch_index": 0,
        "publish_time": MOMENT,
        "event_time": MOMENT,
        "deliver_at_time": MOMENT,
        "producer_name": "spark-1",
        "sequence_id": 7,
        "key": b"\xff\x00",
        "key_b64": True,
        "ordering_key": b"o",
        "properties": [("a", "1"), ("b", None)],
        "value": b"first",
        "schema_version": (5).to_bytes(8, "big"),
    },
    {"entry_id": 0, "batch_index": 1, "publish_time": MOMENT, "schema_version": b"", "properties": []},
    {"entry_id": 1, "batch_index": None, "publish_time": MOMENT, "value": b"", "properties": [("c", "2")]},
]
ALL = select_columns(include_metadata=True)


def segment(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SEGMENT_SCHEMA)


def needed(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the columns that a reader hands over: the needed ones, in the segment's order."""
    return batch.select([name for name in SEGMENT_SCHEMA.names if name in columns])


def test_all_columns_have_the_written_values() -> None:
    out = build(segment(ROWS), LedgerId(12), 345, TOPIC, 3, ALL)
    assert out.to_pylist() == [
        {
            "value": b"first",
            "__key": b"\xff\x00",
            "__topic": TOPIC,
            "__messageId": MessageId(LedgerId(12), EntryId(345), 3, 0).serialize(),
            "__publishTime": MOMENT,
            "__eventTime": MOMENT,
            "__messageProperties": [("a", "1"), ("b", None)],
            "__messageIdStr": "12:345:3:0",
            "__ledgerId": 12,
            "__entryId": 345,
            "__batchIndex": 0,
            "__partition": 3,
            "__producerName": "spark-1",
            "__sequenceId": 7,
            "__redeliveryCount": 0,
            "__schemaVersion": 5,
            "__orderingKey": b"o",
            "__deliverAtTime": MOMENT,
        },
        {
            **dict.fromkeys(ALL.names),
            "__topic": TOPIC,
            "__messageId": MessageId(LedgerId(12), EntryId(345), 3, 1).serialize(),
            "__publishTime": MOMENT,
            "__messageProperties": [],
            "__messageIdStr": "12:345:3:1",
            "__ledgerId": 12,
            "__entryId": 345,
            "__batchIndex": 1,
            "__partition": 3,
            "__redeliveryCount": 0,
        },
        {
            **dict.fromkeys(ALL.names),
            "value": b"",
            "__topic": TOPIC,
            "__messageId": MessageId(LedgerId(12), EntryId(346), 3).serialize(),
            "__publishTime": MOMENT,
            "__messageProperties": [("c", "2")],
            "__messageIdStr": "12:346:3:-1",
            "__ledgerId": 12,
            "__entryId": 346,
            "__partition": 3,
            "__redeliveryCount": 0,
        },
    ]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("names", [None, "__messageId,value", *METADATA_COLUMNS])
def test_every_selection_has_pysparks_schema_and_decodes_only_needed_columns(names: str | None, count: int) -> None:
    selection = select_columns(names)
    batch = needed(segment(ROWS[:count]), selection.segment_columns)
    out = build(batch, LedgerId(1), 0, TOPIC, -1, selection)
    assert out.schema.equals(to_arrow_schema(selection.spark_schema, timezone="UTC"), check_metadata=True)
    assert out.schema.equals(pickle.loads(pickle.dumps(selection)).arrow_schema, check_metadata=True)
    out.validate(full=True)
    assert out.num_rows == count
    assert selection.spark_schema.names == list(selection.names) == out.schema.names


def test_a_topic_that_is_no_partition() -> None:
    out = build(segment(ROWS), LedgerId(12), 345, TOPIC, -1, ALL)
    assert out.column("__partition").null_count == 3
    assert out.column("__messageId")[2].as_py() == bytes.fromhex("080c10d902").replace(b"\xd9\x02", b"\xda\x02")
    assert out.column("__messageIdStr").to_pylist() == ["12:345:-1:0", "12:345:-1:1", "12:346:-1:-1"]


def test_slices_of_a_batch_keep_their_rows() -> None:
    whole = build(segment(ROWS * 10), LedgerId(3), 5, TOPIC, 0, ALL)
    part = build(segment(ROWS * 10).slice(7, 13), LedgerId(3), 5, TOPIC, 0, ALL)
    assert part.to_pylist() == whole.slice(7, 13).to_pylist()


def test_null_properties_are_an_empty_map_even_where_they_cover_entries() -> None:
    full = pa.array([[("a", "1")], [("hidden", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string()))
    entries = pa.StructArray.from_arrays([full.keys, full.items], fields=[full.type.key_field, full.type.item_field])
    maps = pa.MapArray.from_buffers(full.type, 3, [pa.py_buffer(bytes([0b101])), full.buffers()[1]], children=[entries])
    assert maps.to_pylist()[1] is None
    batch = pa.RecordBatch.from_arrays([maps], ["properties"])
    out = build(batch, LedgerId(1), 0, TOPIC, -1, select_columns("__messageProperties"))
    assert out.column(0).to_pylist() == [[("a", "1")], [], [("c", "3")]]
    assert out.column(0).null_count == 0


def test_times_that_spark_cannot_hold_are_null() -> None:
    times = pa.array([2**63 - 1, 0, -(2**63)], pa.int64()).view(pa.timestamp("ms", "UTC"))
    batch = pa.RecordBatch.from_arrays([times], ["event_time"])
    out = build(batch, LedgerId(1), 0, TOPIC, -1, select_columns("__eventTime"))
    assert out.column(0).cast(pa.int64()).to_pylist() == [None, 0, None]


def test_more_rows_than_the_cached_topic_column() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(40_000, pa.int32())], ["batch_index"])
    out = build(batch, LedgerId(1), 0, TOPIC, -1, select_columns("__topic"))
    assert out.column(0).unique().to_pylist() == [TOPIC]
    assert out.num_rows == 40_000


def test_default_columns_are_those_of_pulsar_spark() -> None:
    names = ("value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties")
    assert select_columns().names == names
    assert select_columns(include_metadata=True).names == ("value", *METADATA_COLUMNS)
    assert select_columns(" __KEY , Value").names == ("__key", "value")


def test_typed_values_replace_the_value_column() -> None:
    value_type = StructType([StructField("city", StringType()), StructField("delay", DoubleType())])
    selection = select_columns(value_type=value_type)
    assert selection.names[:3] == ("city", "delay", "__key")
    assert selection.needs_values
    arrow_type = to_arrow_schema(value_type, timezone="UTC")
    values = pa.array([{"city": "JFK", "delay": 1.5}, None, {"city": None, "delay": 0.0}], pa.struct(arrow_type))
    out = build(segment(ROWS), LedgerId(1), 0, TOPIC, -1, selection, values)
    assert out.select(["city", "delay"]).to_pylist() == [
        {"city": "JFK", "delay": 1.5},
        {"city": None, "delay": None},
        {"city": None, "delay": 0.0},
    ]
    only = select_columns("delay,__key", value_type=value_type)
    assert only.segment_columns == ("value", "key")
    assert not select_columns("__key", value_type=value_type).needs_values


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("", "''"),
        ("value,", "''"),
        ("value,nonsense", "'nonsense': give names of the columns value, __key"),
        ("value,VALUE", "twice"),
    ],
)
def test_unknown_columns_are_refused_with_the_known_ones(columns: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        select_columns(columns)


def test_a_field_called_like_another_column_needs_a_prefix() -> None:
    value_type = StructType([StructField("__key", IntegerType()), StructField("value", IntegerType())])
    with pytest.raises(InvalidArgumentError, match="'__key', which has another meaning: rename the field, or set opt"):
        select_columns(value_type=value_type)
    selection = select_columns("v.value,__key,v.__key", value_type=value_type, field_prefix="v.")
    assert selection.field_names == ["value", "__key"]
    values = pa.array([{"value": 1, "__key": 2}] * len(ROWS), pa.struct(to_arrow_schema(value_type, timezone="UTC")))
    out = build(segment(ROWS), LedgerId(1), 0, TOPIC, -1, selection, values)
    plain = build(segment(ROWS), LedgerId(1), 0, TOPIC, -1, select_columns("__key"))
    assert (out.column(0)[0].as_py(), out.column(1), out.column(2)[0].as_py()) == (1, plain.column(0), 2)


def test_a_list_of_columns_may_be_json() -> None:
    value_type = StructType([StructField(name, IntegerType()) for name in ("a,b", " c", "[d]")])
    assert select_columns('["a,b", " c", "__KEY"]', value_type=value_type).names == ("a,b", " c", "__key")
    assert select_columns("[d], __key", value_type=value_type).names == ("[d]", "__key")
