"""Frames that may and may not be written, and the rows they become."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType, TimestampType, _parse_datatype_json_value

from pulsar_on_spark.datasource.columns import METADATA_COLUMNS, build, select_columns
from pulsar_on_spark.datasource.rows import ROW_SCHEMA, SegmentRows, check_frame, to_segment_rows
from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.model.ids import LedgerId

MAP = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}


def frame(**types: object) -> StructType:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    schema = _parse_datatype_json_value({"type": "struct", "fields": fields})
    assert isinstance(schema, StructType)
    return schema


def convert(schema: StructType, batch: pa.RecordBatch, *, has_topic_option: bool = True) -> SegmentRows:
    plan = pickle.loads(pickle.dumps(check_frame(schema, has_topic_option=has_topic_option)))
    made = to_segment_rows(
        batch, plan, producer_name="spark-1", first_sequence_id=40, publish_time_ms=1_700_000_000_123
    )
    made.rows.validate(full=True)
    assert made.rows.schema.equals(ROW_SCHEMA, check_metadata=False)
    return made


def test_row_schema_is_the_segments_without_ids() -> None:
    assert ROW_SCHEMA.names == SEGMENT_SCHEMA.names[3:]


def test_all_writable_columns() -> None:
    moment = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    schema = frame(
        value="string",
        __key="string",
        __topic="string",
        __orderingKey="binary",
        __eventTime="timestamp",
        __deliverAtTime="long",
        __messageProperties=MAP,
    )
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["v", None]),
            pa.array(["k\u00e9", None]),
            pa.array(["a", "b"]),
            pa.array([None, b"\xff"]),
            pa.array([moment + timedelta(microseconds=1999), None], pa.timestamp("us", "America/New_York")),
            pa.array([5, None]),
            pa.array([[("p", "1")], None], pa.map_(pa.string(), pa.string())),
        ],
        schema.names,
    )
    made = convert(schema, batch, has_topic_option=False)
    assert made.topics is not None
    assert made.topics.to_pylist() == ["a", "b"]
    common = {**dict.fromkeys(ROW_SCHEMA.names), "producer_name": "spark-1"}
    common["publish_time"] = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert made.rows.to_pylist() == [
        {
            **common,
            "event_time": moment + timedelta(milliseconds=1),
            "deliver_at_time": datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC),
            "sequence_id": 40,
            "key": "k\u00e9".encode(),
            "properties": [("p", "1")],
            "value": b"v",
        },
        {**common, "sequence_id": 41, "ordering_key": b"\xff"},
    ]


def test_values_and_keys_are_handed_on_without_a_copy() -> None:
    schema = frame(value="binary", __key="string")
    batch = pa.RecordBatch.from_arrays([pa.array([b"v1", b"v2"]), pa.array(["k1", "k2"])], schema.names)
    made = convert(schema, batch)
    for name, column in (("value", 0), ("key", 1)):
        assert made.rows.column(name).buffers()[2].address == batch.column(column).buffers()[2].address


def test_a_key_that_is_no_text_carries_the_flag_of_base64() -> None:
    schema = frame(value="binary", __key="binary")
    batch = pa.RecordBatch.from_arrays([pa.array([b""] * 4), pa.array([b"abc", b"\xff", None, b""])], schema.names)
    made = convert(schema, batch)
    assert made.rows.column("key").to_pylist() == [b"abc", b"\xff", None, b""]
    assert made.rows.column("key_b64").to_pylist() == [False, True, False, False]


def test_a_frame_that_was_read_can_be_written() -> None:
    rows = [{"entry_id": 0, "batch_index": 0, "value": b"v", "key": b"k", "properties": [("a", "b")]}]
    selection = select_columns(include_metadata=True)
    segment = pa.RecordBatch.from_pylist(rows, schema=SEGMENT_SCHEMA)
    read = build(segment, LedgerId(1), 0, "persistent://public/default/x", -1, selection)
    made = convert(selection.spark_schema, read)
    assert made.topics is None
    for name in ("value", "key", "properties", "ordering_key", "event_time", "deliver_at_time"):
        assert made.rows.column(name).to_pylist() == segment.column(name).to_pylist(), name


def test_arrow_types_of_other_spark_settings() -> None:
    schema = frame(value="string", __key="binary", __eventTime="timestamp")
    arrays = [
        pa.array(["v"], pa.large_string()),
        pa.array([b"k"], pa.large_binary()),
        pa.nulls(1, pa.timestamp("us", "UTC")),
    ]
    made = convert(schema, pa.RecordBatch.from_arrays(arrays, schema.names))
    assert made.rows.select(["value", "key"]).to_pylist() == [{"value": b"v", "key": b"k"}]
    void = frame(value="void", __key="void", __eventTime="void", __messageProperties="void")
    made = convert(void, pa.RecordBatch.from_arrays([pa.nulls(2)] * 4, void.names))
    assert made.rows.column("value").null_count == made.rows.column("event_time").null_count == 2


@given(st.lists(st.none() | st.integers(-(10**15), 10**15), max_size=20))
def test_times_are_rounded_down(microseconds: list[int | None]) -> None:
    schema = frame(value="binary", __eventTime="timestamp")
    times = pa.array(microseconds, pa.int64()).view(pa.timestamp("us", "UTC"))
    made = convert(schema, pa.RecordBatch.from_arrays([pa.nulls(len(times), pa.binary()), times], schema.names))
    assert made.rows.column("event_time").view(pa.int64()).to_pylist() == [
        None if time is None else time // 1000 for time in microseconds
    ]


def test_typed_values_are_packed_in_the_types_order() -> None:
    value_type = frame(city="string", delay="double", note="string")
    schema = frame(DELAY="double", __key="string", city="string")
    plan = check_frame(schema, has_topic_option=True, value_type=value_type)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1.5, None]), pa.array(["k", "k"]), pa.array(["JFK", "EWR"])], schema.names
    )
    given: list[pa.StructArray] = []

    def encode(structs: pa.StructArray) -> pa.BinaryArray:
        given.append(structs)
        return pa.array([b"1", b"2"])

    made = to_segment_rows(
        batch, plan, producer_name="p", first_sequence_id=0, publish_time_ms=0, schema_version=bytes(8), encode=encode
    )
    assert given[0].to_pylist() == [{"city": "JFK", "delay": 1.5}, {"city": "EWR", "delay": None}]
    assert made.rows.column("value").to_pylist() == [b"1", b"2"]
    assert made.rows.column("schema_version").to_pylist() == [bytes(8), bytes(8)]


def test_a_frame_that_lacks_every_field_still_has_its_rows() -> None:
    schema, value_type = frame(__key="string"), frame(city="string", delay="double")
    plan = check_frame(schema, has_topic_option=True, value_type=value_type)
    batch = pa.record_batch([pa.array(["a", "b", "c"])], names=["__key"])

    def encode(structs: pa.StructArray) -> pa.BinaryArray:
        return pa.array([b"{}"] * len(structs))

    made = to_segment_rows(batch, plan, producer_name="spark-1", first_sequence_id=0, publish_time_ms=0, encode=encode)
    assert made.rows.column("value").to_pylist() == [b"{}"] * 3


def test_values_encoded_already_may_be_written_to_a_topic_with_a_schema() -> None:
    assert check_frame(frame(value="binary"), has_topic_option=True, value_type=frame(city="string")).value == 0


WRONG = [
    (frame(other="string"), "no column value"),
    (frame(value="integer"), "'value' is int: cast it to string or binary"),
    (frame(value="binary", more="string"), "'more'"),
    (frame(value="binary", VALUE="binary"), "twice"),
    (frame(value="binary", __nonsense="string"), "'__nonsense' is unknown"),
    (frame(value="binary", __key="long"), "'__key' is bigint: cast it to string or binary"),
    (frame(value="binary", __topic="binary"), "'__topic' is binary: cast it to string"),
    (frame(value="binary", __orderingKey="integer"), "'__orderingKey'"),
    (frame(value="binary", __eventTime="date"), "'__eventTime' is date: cast it to timestamp"),
    (frame(value="binary", __deliverAtTime="timestamp_ntz"), "'__deliverAtTime' is timestamp_ntz"),
    (
        frame(value="binary", __messageProperties={**MAP, "valueType": "long"}),
        "is map<string,bigint>: cast it to map<string,string>",
    ),
    (frame(value="binary", __messageProperties="string"), "is string: cast it to map<string,string>"),
]


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=[message for _, message in WRONG])
def test_frames_that_are_refused(schema: StructType, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_frame(schema, has_topic_option=True)


MISFITS = [
    (frame(town="string"), "'town' is not a field"),
    (frame(delay="integer", city="string"), "'delay' is int, but the topic's schema has the type double"),
]


@pytest.mark.parametrize(("schema", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_frames_that_do_not_fit_the_topics_schema(schema: StructType, message: str) -> None:
    with pytest.raises(IncompatibleSchemaError, match=message):
        check_frame(schema, has_topic_option=True, value_type=frame(city="string", delay="double"))


def test_a_required_field_that_is_missing() -> None:
    value_type = frame(city="string").add("at", TimestampType(), False)
    with pytest.raises(IncompatibleSchemaError, match="'at'"):
        check_frame(frame(city="string"), has_topic_option=True, value_type=value_type)


def test_a_write_without_a_topic_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="option topic"):
        check_frame(frame(value="binary"), has_topic_option=False)
    schema = frame(value="binary", __topic="string")
    with pytest.raises(InvalidArgumentError, match="__topic is null"):
        convert(
            schema,
            pa.RecordBatch.from_arrays([pa.array([b""]), pa.nulls(1, pa.string())], schema.names),
            has_topic_option=False,
        )


def test_a_property_without_a_value_is_refused() -> None:
    schema = frame(value="binary", __messageProperties=MAP)
    maps = pa.array([[("a", "1")], None, [("b", None)], [("c", "2")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.nulls(4, pa.binary()), maps], schema.names)
    convert(schema, batch.slice(0, 2))
    convert(schema, batch.slice(3))
    with pytest.raises(InvalidArgumentError, match="__messageProperties"):
        convert(schema, batch)


def test_every_read_only_column_is_accepted() -> None:
    schema = frame(
        value="binary",
        **dict.fromkeys(set(METADATA_COLUMNS) - {"__messageProperties", "__eventTime", "__deliverAtTime"}, "string"),
    )
    assert check_frame(schema, has_topic_option=True).value == 0
