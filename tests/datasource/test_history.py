"""One frame over a topic's history and the topic: each message once, with filters and columns pushed down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession

from pulsar_on_spark import history, views
from pulsar_on_spark.history_table import merging
from pulsar_on_spark.history_table.build import _PartBuild, build
from pulsar_on_spark.history_table.deletion import delete_history
from pulsar_on_spark.history_table.places import find_table
from pulsar_on_spark.history_table.table import HistoryTable
from pulsar_on_spark.metadata.records import HistoryTableRecord
from pulsar_on_spark.model.errors import HistoryTableError, InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog, registry
from pulsar_on_spark.topic.catalog.policies.change import set_topic_policies
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from pulsar_on_spark.topic.maintenance.repair import storage_paths
from tests.kit import messages

T = TopicName.parse("t")
IDS = ("__ledgerId", "__entryId", "__batchIndex")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def frame(spark: SparkSession, root_with_topic: Root) -> Callable[..., DataFrame]:
    def load(topic: str = "t", **named: object) -> DataFrame:
        return history(spark, topic, str(root_with_topic.path), **named)

    return load


def values(frame: DataFrame) -> list[bytes | None]:
    found = [row.value for row in frame.orderBy(*IDS).select("value").collect()]
    return [None if value is None else bytes(value) for value in found]


def table_of(root: Root, topic: str = "t") -> Path:
    view = root.store.view()
    (record,) = view.all(HistoryTableRecord, catalog.require_topic(view, TopicName.parse(topic)).topic_id)
    return root.path / record.table


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_the_table_and_behind_it_the_topic(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    root = root_with_topic
    assert values(frame()) == []
    messages.write(root, "t", [b"a", None])
    assert values(frame()) == [b"a", None]
    build(root, T)
    assert values(frame()) == [b"a", None]
    messages.write(root, "t", [b"b"])
    assert values(frame()) == [b"a", None, b"b"]


def test_a_table_on_a_storage_path(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame], tmp_path: Path
) -> None:
    root = root_with_topic
    storage_paths.add(root, tmp_path / "lake", role="history")
    messages.write(root, "t", [b"a"])
    build(root, T)
    copy = str(shutil.copytree(root.path, tmp_path / "copy"))
    assert values(history(spark, "t", copy)) == [b"a"]
    storage_paths.drain(root, 3)
    messages.write(root, "t", [b"b"])
    assert values(frame()) == [b"a", b"b"]
    build(root, T)
    assert values(frame()) == [b"a", b"b"]
    with pytest.raises(HistoryTableError, match="claimed by the root"):
        history(spark, "t", copy)


def test_a_topic_whose_table_is_refused_holds_up_no_views_of_others(
    spark: SparkSession, root_with_topic: Root, caplog: pytest.LogCaptureFixture
) -> None:
    root = root_with_topic
    root.create_topic("a-b")
    root.create_topic("z")
    for name in ("a-b", "t", "z"):
        messages.write(root, name, [b"a"])
        build(root, TopicName.parse(name))
    assert views(spark, str(root.path)) == ["a-b", "t", "z"]
    DeltaTable(table_of(root, "a-b")).delete("value = 'a'")
    assert views(spark, str(root.path)) == ["t", "z"]
    next((root.path / "history").glob(f"{table_of(root, 'z').name}/g*")).unlink()
    assert views(spark, root) == ["t"]
    refused, lost = (
        each.message.removeprefix("Topic persistent://public/default/")
        for each in caplog.records[-2:]
        if each.name == "pulsar_on_spark.datasource.history"
    )
    assert refused.startswith("a-b gets no view: Another program has changed the rows")
    assert lost.startswith("z gets no view: [PATH_NOT_FOUND]")
    assert not spark.catalog.tableExists("`a-b`"), "it would show what was"


def test_a_build_that_died_between_its_commits_doubles_nothing(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise Killed

    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    monkeypatch.setattr(_PartBuild, "_record", die)
    with pytest.raises(Killed):
        build(root_with_topic, T)
    assert values(frame()) == [b"a", b"b"]


def test_the_columns_are_those_of_the_topic(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    messages.write(root_with_topic, "t", [b"a"], [b"k"])
    read = spark.read.format("pulsarpy").option("topic", "t").option("includeMetadata", "true")
    expected = read.load(str(root_with_topic.path)).select(*frame().columns).collect()
    before = frame()
    build(root_with_topic, T)
    after = frame()
    assert before.schema == after.schema
    assert before.collect() == after.collect() == expected


def test_columns_and_metadata_can_be_left_out(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    assert frame(include_metadata=False).columns == ["value"]
    assert frame(columns=["__key", "value"]).columns == ["__key", "value"]
    with pytest.raises(InvalidArgumentError, match="no column 'price'"):
        frame(columns=["price"])


def test_filters_and_columns_reach_the_files(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a", b"b"])
    build(root_with_topic, T)
    plan = plan_of(frame().where("__entryId = 0").select("value"))
    assert "PushedFilters: [IsNotNull(__entryId), EqualTo(__entryId,0)]" in plan
    assert "ReadSchema: struct<value:binary,__entryId:bigint>" in plan


def test_arguments_of_other_types(spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    for root in (root_with_topic, root_with_topic.path):
        assert values(history(spark, "t", root)) == [b"a"]
    with pytest.raises(InvalidArgumentError, match=r"Argument columns is 'value': give a list of names"):
        frame(columns="value")
    for name in ("starting_time", "ending_time", "at_time"):
        for wrong in ("2023-01-01", 0, datetime.now(UTC).date()):
            with pytest.raises(InvalidArgumentError, match=rf"Argument {name} is .*: give a datetime.datetime"):
                frame(**{name: wrong})


def test_settings_of_the_session_change_nothing(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times before 1582, which Spark may shift, and files that are gone, whose rows it may leave out."""
    root = root_with_topic
    root.create_topic("d", schema="day DATE", schema_type="AVRO")
    with monkeypatch.context() as patch:
        patch.setattr(messages, "current_ms", lambda: -17_280_000_000_000)
        messages.write(root, "d", [b"\x02\xff\xb4\x18"])  # day -200,000
    query = "SELECT unix_date(day), unix_micros(__publishTime) FROM {d}"
    settings = {
        "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "EXCEPTION", "CORRECTED"),
        "spark.sql.parquet.enableVectorizedReader": ("false", "true"),
    }
    for _ in range(2):
        for name, texts in settings.items():
            for text in texts:
                spark.conf.set(name, text)
                assert spark.sql(query, d=frame("d")).first()[:] == (-200_000, -17_280_000_000_000_000)
        build(root, TopicName.parse("d"))
    planned = frame("d")
    next(table_of(root, "d").glob("g*")).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            planned.collect()
    finally:
        for name in (*settings, "spark.sql.files.ignoreMissingFiles"):
            spark.conf.unset(name)


def test_times_choose_messages(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    now = datetime.now(UTC)
    assert values(frame(starting_time=now - timedelta(hours=1))) == [b"a", b"b"]
    assert values(frame(ending_time=now - timedelta(hours=1))) == []


@pytest.mark.parametrize("is_built", [False, True])
def test_times_of_all_years_are_exact(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    middle, later = datetime(1500, 3, 1, tzinfo=UTC), timedelta(microseconds=1)
    for value, time in ((b"1", first), (b"1500", middle), (b"9999", last)):
        milliseconds = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        monkeypatch.setattr(messages, "current_ms", lambda at=milliseconds: at)
        messages.write(root_with_topic, "t", [value])
    if is_built:
        build(root_with_topic, T)
    assert values(frame(starting_time=first)) == values(frame(at_time=last)) == [b"1", b"1500", b"9999"]
    assert values(frame(starting_time=middle, ending_time=last)) == [b"1500", b"9999"]
    assert values(frame(starting_time=middle + later)) == [b"9999"]
    assert values(frame(ending_time=middle)) == values(frame(at_time=middle - later)) == [b"1"]
    assert values(frame(ending_time=middle + later)) == values(frame(at_time=middle)) == [b"1", b"1500"]
    local = middle.astimezone(timezone(timedelta(hours=-5)))
    assert values(frame(starting_time=local, ending_time=local + later)) == [b"1500"]


def test_a_frame_shows_the_same_when_it_is_used_again(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    messages.write(root_with_topic, "t", [b"b"])
    planned = frame()
    messages.write(root_with_topic, "t", [b"c"])
    build(root_with_topic, T)
    assert values(planned) == [b"a", b"b"]
    assert values(frame()) == [b"a", b"b", b"c"]


def test_a_frame_of_the_topic_that_is_used_after_a_trim_fails(
    root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    """It would lack what has moved into the table meanwhile."""
    keeps_nothing = {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "history": {"enabled": True}}
    set_topic_policies(root_with_topic, T, keeps_nothing)
    for first, last in ((b"a", b"b"), (b"c", b"d")):
        messages.write(root_with_topic, "t", [first])
        planned = frame()
        messages.write(root_with_topic, "t", [last])
        assert root_with_topic.maintain().trimmed.segments == 2
        with pytest.raises(Exception, match="trimmed by retention"):
            planned.collect()
    assert values(frame()) == [b"a", b"b", b"c", b"d"]


def test_the_table_is_found_if_another_file_system_is_the_default(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1/")
    try:
        assert values(frame()) == [b"a"]
    finally:
        spark.conf.unset("fs.defaultFS")


def test_sql_over_the_frame(spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a", b"b"])
    build(root_with_topic, T)
    counted = spark.sql("SELECT count(*) AS n FROM {orders} WHERE value = X'61'", orders=frame())
    assert json.loads(counted.toJSON().first() or "") == {"n": 1}


def test_the_topic_as_of_a_time(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(value: bytes, second: float) -> None:
        monkeypatch.setattr(messages, "current_ms", lambda: 1_700_000_000_000 + int(second * 1000))
        messages.write(root_with_topic, "t", [value])

    def at(second: float) -> list[bytes | None]:
        return values(frame(at_time=datetime.fromtimestamp(1_700_000_000 + second, UTC)))

    for second, value in enumerate((b"a", b"b", b"c")):
        write(value, second)
    for is_built in (False, True):
        if is_built:
            build(root_with_topic, T)
        assert [at(-0.001), at(0), at(1.5), at(9)] == [[], [b"a"], [b"a", b"b"], [b"a", b"b", b"c"]]
    write(b"d", 1)  # by a slow clock
    write(b"e", 5)
    assert at(4) == [b"a", b"b", b"c", b"d"]
    assert at(1) == [b"a", b"b"]
    write(b"f", 6.001)
    for second, value in ((1 << 52, b"out of range"), (-(10**10), b"year 1653"), (10**12, b"year 33658"), (9, b"g")):
        write(value, second)
    for _ in range(2):
        assert at(6) == [b"a", b"b", b"c", b"d", b"e"]
        assert at(8)[-3:] == [b"f", b"out of range", b"year 1653"]
        build(root_with_topic, T)


def test_all_partitions_in_one_frame(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    root = root_with_topic
    root.create_topic("p", 3)
    messages.write(root, "p", [b"%d" % number for number in range(30)], [b"k%d" % number for number in range(30)])
    build(root, TopicName.parse("p-partition-1"))
    messages.write(root, "p", [b"%d" % number for number in range(30, 40)])
    build(root, TopicName.parse("p-partition-2"))
    assert sorted(map(int, filter(None, values(frame("p"))))) == list(range(40))
    build(root, TopicName.parse("p"))
    assert sorted(map(int, filter(None, values(frame("p"))))) == list(range(40))
    assert len(list((root.path / "history").iterdir())) == 1
    one = frame("p-partition-1")
    assert {row[0] for row in one.select("__partition").collect()} == {1}
    assert frame("p").groupBy("__partition").count().count() == 3


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_comma_in_the_name_of_a_topic(
    root_with_topic: Root, frame: Callable[..., DataFrame], partitions: int | None
) -> None:
    for name in ("a", "b", "a,b"):
        root_with_topic.create_topic(name, partitions)
        messages.write(root_with_topic, name, [name.encode()] * 2)
    assert values(frame("a,b")) == [b"a,b"] * 2
    build(root_with_topic, TopicName.parse("a,b"))
    messages.write(root_with_topic, "a,b", [b"a,b"])
    assert values(frame("a,b")) == [b"a,b"] * 3


@pytest.mark.parametrize("is_built", [False, True])
def test_what_is_replaced_while_a_frame_is_planned(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    """The schema changes, or the history is deleted, after the metadata were read."""
    root = root_with_topic
    messages.write(root, "t", [b'{"id": 1}'])
    if is_built:
        build(root, T)

    def find_later(*arguments: Any) -> HistoryTable | None:
        monkeypatch.undo()
        if is_built:
            delete_history(root, T)
        else:
            root.declare_schema("t", "id INT")
        return find_table(*arguments)

    monkeypatch.setattr("pulsar_on_spark.datasource.history.find_table", find_later)
    expected = ("value", bytearray(b'{"id": 1}')) if is_built else ("id", 1)
    found = frame(include_metadata=False)
    assert (*found.columns, *found.first()) == expected


class Typed:
    """Rows of topics with schemas, as Spark writes them."""

    def __init__(self, spark: SparkSession, root: Root) -> None:
        self._spark = spark
        self._root = root

    def write(self, topic: str, rows: str) -> None:
        self._spark.sql(f"SELECT {rows}").write.format("pulsarpy").mode("append").option("topic", topic).save(
            str(self._root.path)
        )


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_typed_columns_follow_the_schema(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame], kind: str
) -> None:
    root, typed = root_with_topic, Typed(spark, root_with_topic)
    root.create_topic("o", schema="id INT, city STRING, tags ARRAY<STRING>", schema_type=kind)
    typed.write("o", "1 AS id, 'Bonn' AS city, array('x', NULL) AS tags")
    build(root, TopicName.parse("o"))
    assert frame("o", include_metadata=False).dtypes[:2] == [("id", "bigint"), ("city", "string")]
    root.declare_schema("o", "id INT, city STRING, tags ARRAY<STRING>, price DOUBLE", kind)
    assert [row[:] for row in frame("o", include_metadata=False).collect()] == [(1, "Bonn", ["x", None], None)]
    typed.write("o", "2 AS id, 'Ulm' AS city, array('y') AS tags, 2.5D AS price")
    expected = [(1, "Bonn", ["x", None], None), (2, "Ulm", ["y"], 2.5)]
    for _ in range(2):
        found = frame("o", columns=["id", "city", "tags", "price"]).orderBy("id")
        assert [row[:] for row in found.collect()] == expected
        build(root, TopicName.parse("o"))
    plan = plan_of(frame("o").where("price > 2").select("id"))
    assert "GreaterThan(price,2.0)" in plan
    assert "ReadSchema: struct<id:bigint,price:double>" in plan


def test_a_field_that_changes_its_type_keeps_its_old_values(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    root, typed = root_with_topic, Typed(spark, root_with_topic)
    root.create_topic("o", schema="id INT, gone STRING")
    typed.write("o", "1 AS id, 'g' AS gone")
    build(root, TopicName.parse("o"))
    changed = TopicSchema.parse("JSON", "id STRING")
    registry.add_schema(root.store, TopicName.parse("o"), changed, Strategy.ALWAYS_COMPATIBLE)
    typed.write("o", "'two' AS id")
    for _ in range(2):
        rows = frame("o", columns=["id", "gone"]).orderBy("id").collect()
        assert [row[:] for row in rows] == [("1", "g"), ("two", None)]
        build(root, TopicName.parse("o"))


def evolve(
    root: Root, topic: str, fields: list[tuple[str, object]], value: dict[str, object], kind: str = "JSON"
) -> None:
    """Give a topic another schema, and write a value of it."""
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": of} for name, of in fields]})
    schema = TopicSchema(kind, text)
    registry.add_schema(root.store, TopicName.parse(topic), schema, Strategy.ALWAYS_COMPATIBLE)
    messages.write(root, topic, [json.dumps(value).encode()])


def record(*fields: tuple[str, object]) -> dict[str, object]:
    return {"type": "record", "name": "S", "fields": [{"name": name, "type": of} for name, of in fields]}


def test_nested_fields_and_types_without_a_cast_hide_nothing(
    root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    """Fields added inside records, arrays and maps; a type that cannot be cast; a name that looks like a version."""
    root = root_with_topic
    root.create_topic("o")
    inner, wider = record(("x", "int")), record(("x", "long"), ("y", "string"))
    first: dict[str, object] = {"n": 1, "s": {"x": 1}, "l": [{"x": 1}], "m": {"k": {"x": 1}}, "u": True, "u__v1": "u"}
    then: dict[str, object] = {
        "n": 2,
        "s": {"x": 2, "y": "b"},
        "l": [{"x": 2, "y": "b"}],
        "m": {},
        "u": [7],
        "u__v1": "w",
    }
    kinds: list[tuple[str, object]] = [
        ("n", "int"),
        ("s", inner),
        ("l", {"type": "array", "items": "S"}),
        ("m", {"type": "map", "values": "S"}),
    ]
    evolve(root, "o", [*kinds, ("u", "boolean"), ("u__v1", "string")], first)
    build(root, TopicName.parse("o"))
    kinds = [
        ("n", "int"),
        ("s", wider),
        ("l", {"type": "array", "items": "S"}),
        ("m", {"type": "map", "values": "S"}),
    ]
    evolve(root, "o", [*kinds, ("u", {"type": "array", "items": "int"}), ("u__v1", "string")], then)
    for _ in range(2):
        old, new = (row.asDict(recursive=True) for row in frame("o", include_metadata=False).orderBy("n").collect())
        x = {"x": 1, "y": None}
        assert old == {"n": 1, "s": x, "l": [x], "m": {"k": x}, "u": None, "u__v1": "u", "u__v0": True}
        assert new == {**then, "u__v0": None}
        build(root, TopicName.parse("o"))


def test_fields_that_delta_has_no_column_for(root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    """Names that differ in the case of letters, also from columns of messages; fields that are always null."""
    root = root_with_topic
    root.create_topic("o")
    evolve(
        root,
        "o",
        [("id", "int"), ("ID", "int"), ("__KEY", "string"), ("no", "null"), ("l", {"type": "array", "items": "null"})],
        {"id": 1, "ID": 2, "__KEY": "k", "no": None, "l": [None]},
    )
    for _ in range(2):
        assert frame("o", columns=["id", "ID__v0", "__KEY__v0", "no", "l"]).first()[:] == (1, 2, "k", None, [None])
        build(root, TopicName.parse("o"))


def test_a_column_that_another_program_adds(
    root_with_topic: Root, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, topic = root_with_topic, TopicName.parse("o")
    root.create_topic("o", schema="id INT")
    messages.write(root, "o", [b'{"id": 1}'])
    build(root, topic)
    DeltaTable(table_of(root, "o")).alter.add_columns([DeltaField("note", PrimitiveType("string"))])
    messages.write(root, "o", [b'{"id": 2}'])
    build(root, topic)
    monkeypatch.setattr(merging, "WORTH_FILES", 2)
    assert merging.merge_small_files(HistoryTable(root.path, f"history/{table_of(root, 'o').name}")) == 2
    assert [row[:] for row in frame("o", columns=["id", "note"]).orderBy("id").collect()] == [(1, None), (2, None)]
    root.declare_schema("o", "id INT, note STRING")
    messages.write(root, "o", [b'{"id": 3, "note": "n"}'])
    for _ in range(2):
        rows = frame("o", include_metadata=False).orderBy("id").collect()
        assert rows[0].asDict() == {"id": 1, "note": None, "note__v0": None}
        assert rows[2].asDict() == {"id": 3, "note": "n", "note__v0": None}
        build(root, topic)


def test_a_schema_that_comes_later(spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]) -> None:
    messages.write(root_with_topic, "t", [b"a"])
    build(root_with_topic, T)
    root_with_topic.declare_schema("t", "id INT")
    Typed(spark, root_with_topic).write("t", "7 AS id")
    for _ in range(2):
        rows = frame(columns=["id", "value"]).orderBy("id").collect()
        assert [row[:] for row in rows] == [(None, bytearray(b"a")), (7, None)]
        build(root_with_topic, T)


def test_local_times_are_microseconds(
    spark: SparkSession, root_with_topic: Root, frame: Callable[..., DataFrame]
) -> None:
    root_with_topic.create_topic("l", schema="at TIMESTAMP_NTZ, day DATE, paid DECIMAL(9,2)", schema_type="AVRO")
    Typed(spark, root_with_topic).write(
        "l",
        "TIMESTAMP_NTZ'1970-01-01 00:00:01.5' AS at, DATE'2026-01-02' AS day, CAST(12.5 AS DECIMAL(9,2)) AS paid",
    )
    before = frame("l", include_metadata=False).collect()
    build(root_with_topic, TopicName.parse("l"))
    assert frame("l", include_metadata=False).collect() == before
    assert before[0].at == 1_500_000
