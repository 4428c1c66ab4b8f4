"""Pulsar's strategies, and errors that say what differs."""

from __future__ import annotations

import json

import pytest

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.schemas.avro import Steps
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy, check_consumer, check_producer, differences
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema


def avro(*fields: str, kind: str = "AVRO") -> TopicSchema:
    """`a` is a required field, `a?` one with a default."""
    made = [
        {"name": name[0], "type": ["null", "int"], "default": None} if name[1:] else {"name": name, "type": "int"}
        for name in fields
    ]
    return TopicSchema(kind, json.dumps({"type": "record", "name": "R", "fields": made}))


def key_value(key: TopicSchema, value: TopicSchema, encoding: str = "INLINE") -> TopicSchema:
    types = {"key.schema.type": key.type, "value.schema.type": value.type, "kv.encoding.type": encoding}
    return TopicSchema("KEY_VALUE", json.dumps({"key": key.data, "value": value.data}), types)


STRING, INT64 = TopicSchema("STRING", ""), TopicSchema("INT64", "")


def allowed(new: TopicSchema, old: list[TopicSchema], strategy: Strategy) -> bool:
    try:
        check_producer("t", new, dict(enumerate(old)), strategy)
    except IncompatibleSchemaError:
        return False
    return True


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (["a"], ["a", "b?"], True, True),
        (["a"], ["a", "b"], False, True),
        (["a", "b"], ["a"], True, False),
        (["a", "b?"], ["a"], True, True),
        (["a"], ["b"], False, False),
    ],
)
def test_directions(old: list[str], new: list[str], backward: bool, forward: bool) -> None:
    expected = {
        Strategy.BACKWARD: backward,
        Strategy.FORWARD: forward,
        Strategy.FULL: backward and forward,
        Strategy.ALWAYS_COMPATIBLE: True,
        Strategy.ALWAYS_INCOMPATIBLE: False,
    }
    for strategy, is_allowed in expected.items():
        assert allowed(avro(*new), [avro(*old)], strategy) is is_allowed
        assert allowed(avro(*new, kind="JSON"), [avro(*old, kind="JSON")], strategy) is is_allowed


@pytest.mark.parametrize("direction", ["BACKWARD", "FORWARD", "FULL"])
def test_transitive_strategies_look_at_every_version(direction: str) -> None:
    # Through `a` with a default, a field may come, go, and come back without one.
    versions = [avro("x"), avro("x", "a?"), avro("x", "a?")]
    new = avro("x", "a")
    strategy, transitive = Strategy(direction), Strategy(f"{direction}_TRANSITIVE")
    if direction == "FORWARD":
        versions, new = [avro("x", "a"), avro("x", "a?")], avro("x")
    if direction == "FULL":
        versions, new = [avro("x", "a"), avro("x", "a?")], avro("x")
    if direction == "BACKWARD":
        versions, new = [avro("x"), avro("x", "a")], avro("x", "a", "b?")
    assert allowed(new, versions, strategy)
    assert not allowed(new, versions, transitive)


def test_the_first_schema_may_be_any() -> None:
    assert all(allowed(avro("a"), [], strategy) for strategy in Strategy)


def test_the_error_names_version_direction_and_fields() -> None:
    with pytest.raises(IncompatibleSchemaError) as caught:
        check_producer("orders", avro("b", "c", "d", "e", "f"), {3: avro("a")}, Strategy.FULL)
    assert str(caught.value) == (
        "The schema is not compatible with topic orders (FULL), because it cannot read values of version 3: field 'b' "
        "is missing and has no default value; field 'c' is missing and has no default value; field 'd' is missing and "
        "has no default value and 2 more."
    )
    with pytest.raises(IncompatibleSchemaError, match=r"\(FULL\), because version 3 cannot read its values: field 'a'"):
        check_producer("orders", avro("b?"), {3: avro("a")}, Strategy.FULL)


def test_another_type_is_incompatible_but_for_always_compatible() -> None:
    assert not allowed(STRING, [avro("a")], Strategy.FULL)
    assert allowed(STRING, [avro("a")], Strategy.ALWAYS_COMPATIBLE)
    assert differences(avro("a"), avro("a", kind="JSON"), Steps()) == ["its type is AVRO, not JSON"]
    assert differences(TopicSchema("EXTERNAL", "x"), TopicSchema("EXTERNAL", "y"), Steps()) == [
        "schemas of type EXTERNAL cannot change"
    ]


def test_keys_and_values_are_compared_apart() -> None:
    old = key_value(STRING, avro("a"))
    assert differences(old, key_value(STRING, avro("a", "b?")), Steps()) == []
    assert differences(old, key_value(INT64, avro("a")), Steps()) == ["in the key, its type is STRING, not INT64"]
    (found,) = differences(old, key_value(STRING, avro("b")), Steps())
    assert found.startswith("in the value, field 'b'")
    indented = TopicSchema("AVRO", json.dumps(json.loads(avro("a").data), indent=4))
    assert old.identity() == key_value(STRING, indented).identity()
    assert old.identity() != key_value(STRING, avro("a"), "SEPARATED").identity()


def test_protobuf_native_goes_by_its_root_message() -> None:
    one, two, other = (
        TopicSchema("PROTOBUF_NATIVE", json.dumps({"fileDescriptorSet": descriptor, "rootMessageTypeName": name}))
        for descriptor, name in (("AA==", "x.M"), ("BB==", "x.M"), ("AA==", "x.N"))
    )
    assert differences(one, two, Steps()) == []
    assert differences(one, other, Steps()) == ["its root message is x.M, not x.N"]


@pytest.mark.parametrize(
    ("strategy", "reads_latest", "reads_all"),
    [(each, True, "TRANSITIVE" not in each.value or each is Strategy.FORWARD_TRANSITIVE) for each in Strategy],
)
def test_consumers_must_read_the_latest_or_all_versions(
    strategy: Strategy, reads_latest: bool, reads_all: bool
) -> None:
    versions = {0: avro("a"), 1: avro("a", "b")}

    def may_read(reader: TopicSchema) -> bool:
        try:
            check_consumer("t", reader, versions, strategy)
        except IncompatibleSchemaError:
            return False
        return True

    always = strategy is Strategy.ALWAYS_COMPATIBLE
    assert may_read(avro("c")) is always
    assert may_read(avro("b", "c?")) is (reads_latest and reads_all)
    assert may_read(avro("c?"))
    assert may_read(avro("a", "b")), "one that is a version is never refused"


@pytest.mark.parametrize(
    "schema",
    [
        TopicSchema("AVRO", "{"),
        TopicSchema("avro", "{}"),
        TopicSchema("KEY_VALUE", "{}"),
        TopicSchema(
            "KEY_VALUE", '{"key": "", "value": "{"}', {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
        ),
        TopicSchema("JSON", json.dumps("x" * (1 << 20))),
        TopicSchema("EXTERNAL", "ä" * (1 << 19) + "x"),
    ],
    ids=["avro", "type", "no parts", "part", "letters", "bytes"],
)
def test_malformed_schemas(schema: TopicSchema) -> None:
    with pytest.raises(InvalidArgumentError):
        schema.check()


def test_strategies_by_name() -> None:
    assert Strategy.parse("full_transitive") is Strategy.FULL_TRANSITIVE
    with pytest.raises(InvalidArgumentError, match="'SOME' is not known: give ALWAYS_INCOMPATIBLE, "):
        Strategy.parse("SOME")
