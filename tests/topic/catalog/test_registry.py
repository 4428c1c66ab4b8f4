"""Versions of a topic's schema: numbered, committed under the topic's key, one registry for both faces."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulsar_on_spark.model.errors import (
    CommitConflictError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import registry
from pulsar_on_spark.topic.entries.schemas.compatibility import Strategy, check_producer
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema

T = TopicName.parse("t")


def click(*fields: str) -> str:
    optional = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    return json.dumps({"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}, *optional]})


CLICK = click()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root.create(tmp_path / "root")
    made.create_topic("t", 2)
    return made


def test_versions_follow_each_other_and_stay(root: Root) -> None:
    for number, text in enumerate((CLICK, click("a"), click("a", "b"))):
        added = registry.add_schema(root.store, T, TopicSchema("AVRO", text, {"k": "v"}))
        assert (added.version, added.properties) == (number, {"k": "v"})
    view = root.store.view()
    assert [each.version for each in registry.versions(view, T)] == [0, 1, 2]
    assert registry.find(view, T, None) == registry.versions(view, T)[2]
    assert registry.find(view, T, 1) == registry.versions(view, T)[1]
    assert registry.find(view, T, 3) is None


def test_white_space_makes_no_new_version_and_no_commit(root: Root) -> None:
    first = registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    before = root.store.view().version
    for indent in (1, 8):
        text = json.dumps(json.loads(CLICK), indent=indent)
        assert registry.add_schema(root.store, T, TopicSchema("JSON", text)) == first
    assert root.store.view().version == before


def test_going_back_to_an_old_version_gives_its_number(root: Root) -> None:
    first = registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    registry.add_schema(root.store, T, TopicSchema("JSON", click("a")))
    assert registry.add_schema(root.store, T, TopicSchema("JSON", CLICK)) == first


def test_a_partition_has_the_schema_of_its_topic(root: Root) -> None:
    first = registry.add_schema(root.store, T.partition(1), TopicSchema("JSON", CLICK))
    assert first.name == T.full
    assert registry.find(root.store.view(), T.partition(0), None) == first
    assert registry.find_same(root.store.view(), T, TopicSchema("JSON", CLICK)) == first


def test_incompatible_schemas_are_refused(root: Root) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK), may_update=False)
    with pytest.raises(IncompatibleSchemaError, match="is_allow_auto_update_schema is off"):
        registry.add_schema(root.store, T, TopicSchema("JSON", click("a")), may_update=False)
    with pytest.raises(IncompatibleSchemaError, match=r"\(FULL\).*its type is JSON, not AVRO"):
        registry.add_schema(root.store, T, TopicSchema("AVRO", CLICK))
    registry.add_schema(root.store, T, TopicSchema("AVRO", CLICK), Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(InvalidArgumentError):
        registry.add_schema(root.store, T, TopicSchema("AVRO", "{"))
    with pytest.raises(TopicNotFoundError):
        registry.add_schema(root.store, TopicName.parse("none"), TopicSchema("AVRO", CLICK))
    assert [each.type for each in registry.versions(root.store.view(), T)] == ["JSON", "AVRO"]


def test_registering_at_once_makes_each_version_once(root: Root) -> None:
    texts = [click(*"abcdef"[:count]) for count in range(6)] * 2
    roots = [Root.open(root.path) for _ in range(2)]

    def add(number: int) -> tuple[str, int]:
        store = roots[number % 2].store
        added = registry.add_schema(store, T, TopicSchema("JSON", texts[number]), Strategy.ALWAYS_COMPATIBLE)
        return texts[number], added.version

    with ThreadPoolExecutor(4) as threads:
        given = dict(threads.map(add, range(len(texts))))
    known = registry.versions(root.store.view(), T)
    assert [each.version for each in known] == list(range(6))
    assert given == {each.data: each.version for each in known}


def test_consumers_are_checked_against_the_latest_schema(root: Root) -> None:
    reader = TopicSchema("JSON", click("more"))
    registry.check_reader(root.store.view(), T, reader)
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    registry.check_reader(root.store.view(), T, reader)
    with pytest.raises(IncompatibleSchemaError, match="cannot read values of version 0: its type is JSON, not STRING"):
        registry.check_reader(root.store.view(), T, TopicSchema("STRING", ""))


def test_schemas_declared_by_spark_are_in_the_registry(root: Root) -> None:
    first = root.declare_schema("t", CLICK, "avro")
    assert (first.version, first.type, first.data) == (0, "AVRO", CLICK)
    assert root.declare_schema("t-partition-1", json.dumps(json.loads(CLICK), indent=2), "AVRO") == first
    assert root.declare_schema("t", click("a"), "AVRO").version == 1
    with pytest.raises(IncompatibleSchemaError, match="field 'page' is missing"):
        root.declare_schema("t", CLICK.replace("url", "page"), "AVRO")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("PROTOBUF", CLICK),
        ("JSON", "{"),
        ("JSON", '"string"'),
        ("AVRO", "[]"),
        ("AVRO", json.dumps({"type": "record", "name": "x"})),
        ("AVRO", json.dumps({"type": "record", "name": "x", "fields": [{"name": "a", "type": "unknown"}]})),
        ("AVRO", "null"),
        ("AVRO", "7"),
    ],
)
def test_schemas_that_spark_cannot_declare_are_refused(kind: str, data: str) -> None:
    with pytest.raises(InvalidArgumentError):
        TopicSchema.parse(kind, data)


def test_any_schema_may_follow_a_deleted_one_which_still_reads_its_messages(root: Root) -> None:
    first = registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    assert registry.delete_schema(root.store, T.partition(1)) == 1
    view = root.store.view()
    assert (registry.versions(view, T), registry.find(view, T, None), registry.find(view, T, 1)) == ([], None, None)
    assert registry.find(view, T, 0) == first
    assert registry.readable(view, T) == [first]
    assert registry.find_same(view, T, TopicSchema("JSON", CLICK)) is None
    with pytest.raises(SchemaNotFoundError, match="has no schema"):
        registry.delete_schema(root.store, T)

    again = registry.add_schema(root.store, T, TopicSchema("STRING", ""), may_update=False)
    assert again.version == 2
    assert registry.versions(root.store.view(), T) == [again]


def test_a_schema_that_is_deleted_for_good_leaves_its_numbers(root: Root) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    registry.delete_schema(root.store, T)
    registry.add_schema(root.store, T, TopicSchema("STRING", ""))
    assert registry.delete_schema(root.store, T, force=True) == 3
    view = root.store.view()
    assert registry.readable(view, T) == []
    assert [registry.find(view, T, number) for number in range(4)] == [None] * 4
    assert registry.add_schema(root.store, T, TopicSchema("JSON", CLICK)).version == 4
    with pytest.raises(SchemaNotFoundError):
        registry.delete_schema(root.store, TopicName.parse(create(root, "none")), force=True)


def create(root: Root, name: str) -> str:
    root.create_topic(name)
    return name


def test_versions_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process that has the metadata has all of them in memory."""
    root.create_topic("bounded")
    name = TopicName.parse("bounded")
    monkeypatch.setattr(registry, "MAX_VERSIONS", 3)
    for number in range(3):
        record = f'{{"type": "record", "name": "R", "fields": [{{"name": "f{number}", "type": "int", "default": 0}}]}}'
        registry.add_schema(root.store, name, TopicSchema("AVRO", record), Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(InvalidArgumentError, match="has 3 versions of its schema, and may have at most 3"):
        registry.add_schema(root.store, name, TopicSchema("STRING", ""), Strategy.ALWAYS_COMPATIBLE)
    assert registry.add_schema(root.store, name, TopicSchema("AVRO", record)).version == 2, "it is there already"
    monkeypatch.undo()
    monkeypatch.setattr(registry, "MAX_VERSIONS_LETTERS", 300)
    with pytest.raises(InvalidArgumentError, match="with 300 characters together"):
        registry.add_schema(root.store, name, TopicSchema("AVRO", record.replace("f2", "f3")))
    properties = {"k": "v" * 20_000}
    with pytest.raises(InvalidArgumentError, match="cannot have 1 properties of 20001 bytes"):
        registry.add_schema(root.store, name, TopicSchema("STRING", "", properties))


# -- the comparison, which takes its time, and the commit --------------------------------------------------------------


def test_others_commit_while_a_schema_is_compared(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    done: list[bool] = []

    def compare(*args: Any) -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(root.create_topic, "other", 1).result(60)
        done.append(True)
        check_producer(*args)

    monkeypatch.setattr(registry, "check_producer", compare)
    assert registry.add_schema(root.store, T, TopicSchema("JSON", click("a"))).version == 1
    assert done == [True]


def test_a_schema_is_compared_again_if_the_versions_changed_meanwhile(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    compared: list[list[int]] = []

    def compare(name: str, new: TopicSchema, existing: dict[int, TopicSchema], strategy: Strategy) -> None:
        check_producer(name, new, existing, strategy)
        if new.data == click("a", "b"):
            compared.append(list(existing))
            if len(compared) == 1:
                registry.add_schema(root.store, T, TopicSchema("JSON", click("a")))

    monkeypatch.setattr(registry, "check_producer", compare)
    assert registry.add_schema(root.store, T, TopicSchema("JSON", click("a", "b"))).version == 2
    assert compared == [[0], [0, 1]]


def test_a_schema_that_another_registered_meanwhile_is_that_version(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    compared: list[int] = []

    def compare(*args: Any) -> None:
        compared.append(1)
        if len(compared) == 1:
            registry.add_schema(root.store, T, TopicSchema("JSON", click("a")))

    monkeypatch.setattr(registry, "check_producer", compare)
    assert registry.add_schema(root.store, T, TopicSchema("JSON", click("a"))).version == 1
    assert len(registry.versions(root.store.view(), T)) == 2


def test_a_schema_is_not_compared_for_ever(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    compared: list[int] = []

    def compare(name: str, new: TopicSchema, *_: object) -> None:
        if new.data == click("a"):
            compared.append(1)
            registry.add_schema(root.store, T, TopicSchema("JSON", click(f"b{len(compared)}")))

    monkeypatch.setattr(registry, "check_producer", compare)
    with pytest.raises(CommitConflictError, match="changed during each of 30 comparisons"):
        registry.add_schema(root.store, T, TopicSchema("JSON", click("a")))
    assert len(compared) == registry.ATTEMPTS


def test_a_schema_that_was_judged_by_other_rules_is_not_registered(root: Root) -> None:
    registry.add_schema(root.store, T, TopicSchema("JSON", CLICK))
    judged = registry.judge(root.store.view(), T, TopicSchema("JSON", click("a")), registry.Rules())
    strict = registry.Rules(may_update=False)
    assert registry.register(root.store, T, judged, lambda _: strict) is None
    assert len(registry.versions(root.store.view(), T)) == 1
    assert registry.register(root.store, T, judged, lambda _: registry.Rules()) == judged.record
