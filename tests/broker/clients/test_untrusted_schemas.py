"""Schemas of clients are data: whatever classes, modules or code they name, nothing is loaded (CVE-2024-47561).

Avro's Java library loaded the classes that attributes of a schema name, and generated code with its names
(CVE-2025-33042).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pulsar_on_spark.protocol.commands import BaseCommand, CommandGetOrCreateSchema, CommandProducer, Schema
from tests.kit.running_broker import RunningBroker

from .conftest import WAIT_MS
from .raw import answer, command, connect

TRAP = "planted.Trap"
CODE = "__import__('planted')"
LOADING = ("java-class", "java-element-class", "java-key-class", "python-class", "class", "logicalType")
"""Attributes by which libraries of some language choose a class."""


def trapped(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | dict.fromkeys(LOADING, TRAP)


RECORD = trapped(
    {
        "type": "record",
        "name": "Trap",
        "namespace": "planted",
        "doc": CODE,
        "fields": [
            trapped({"name": "a", "type": trapped({"type": "string"})}),
            {"name": "b", "type": trapped({"type": "array", "items": "string"})},
            {"name": "c", "type": trapped({"type": "map", "values": trapped({"type": "bytes"})})},
            {"name": "d", "type": trapped({"type": "enum", "name": f"{TRAP}Kind", "symbols": ["A"]})},
            {"name": "e", "type": ["null", trapped({"type": "long"})], "default": None},
        ],
    }
)
ROW = {"a": CODE, "b": [TRAP], "c": {TRAP: b"x"}, "d": "A", "e": 1}
WRONG = (
    {"type": "record", "name": CODE, "fields": []},
    {"type": "record", "name": "R", "fields": [{"name": CODE, "type": "int"}]},
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": TRAP}]},
    {"type": TRAP},
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": CODE}]},
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"$ref": "file:///etc/passwd"}}]},
)
READING = """
import io, json, sys
import fastavro, pyarrow as pa
from pulsar_on_spark.cli.message_values import ValueSchema
from pulsar_on_spark.model.errors import PulsarpyError
from pulsar_on_spark.topic.entries.schemas.avro import Steps, parse_avro, unreadable
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.avro_values import decode_avro, encode_avro

def go_through(schema, row):
    text = json.dumps(schema)
    try:
        parsed = parse_avro(text)
        unreadable(parsed, parse_avro(json.dumps(schema | {"doc": "another"})), Steps())
        type_ = arrow_of_avro(text)
        stored = encode_avro(pa.array([row], type_), text)
        rows = decode_avro(stored, type_, text, lambda *_: None)
        decode_avro(stored, type_, json.dumps(schema | {"doc": "another"}), lambda *_: None, text)
        return [ValueSchema("AVRO", text).text(each) for each in stored.to_pylist()], rows.to_pylist()
    except PulsarpyError as error:
        return type(error).__name__

heard = []
LOADS = ("import", "exec", "compile", "open", "os.system", "subprocess.Popen", "socket.connect", "pickle.find_class")
plain = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
go_through(plain, {"a": "x"}), go_through({"type": "unknown"}, {})  # loads what any schema needs
sys.addaudithook(lambda event, args: heard.append((event, repr(args))) if event in LOADS else None)
record, row, wrong = json.load(sys.stdin)
row["c"] = {name: value.encode() for name, value in row["c"].items()}
print(json.dumps([go_through(record, row), *(go_through(each, {}) for each in wrong)], default=str))
print(json.dumps(heard))
import planted
print(bool(heard))
"""


@dataclass
class Planted:
    """A module that leaves a mark when it is imported, and the environment in which it can be."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "planted.py").write_text(f"open({str(self.mark)!r}, 'w').close()\nclass Trap: pass\n")
        self.path = f"PYTHONPATH={self.folder}"

    @property
    def mark(self) -> Path:
        return self.folder / "mark"


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


def test_reading_by_a_schema_loads_nothing(planted: Planted) -> None:
    """The interpreter reports all imports, compilations, files, processes and connections."""
    given = json.dumps([RECORD, ROW | {"c": {TRAP: "x"}}, WRONG])
    command = ["env", planted.path, sys.executable, "-c", READING]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    answers, heard, would_be_heard = map(json.loads, done.stdout.lower().splitlines())
    (shown, rows), *wrong = answers
    assert CODE in shown[0]
    assert rows[0]["a"] == CODE
    assert wrong.count("invalidargumenterror") >= 4
    assert heard == []
    assert would_be_heard
    assert planted.mark.exists(), "it is loaded by an import"


@pytest.fixture
def broker(planted: Planted, memory_path: Path) -> Iterator[RunningBroker]:
    """In an interpreter of its own, which finds the planted module."""
    with RunningBroker(memory_path / "root", prefix=("env", planted.path)) as running:
        yield running


def test_a_schema_that_a_client_sends_loads_nothing(broker: RunningBroker, planted: Planted) -> None:
    sent: list[tuple[int, str]] = []
    for type_ in (Schema.Avro, Schema.Json, Schema.Protobuf):
        sent += [(type_, json.dumps(each)) for each in (RECORD, RECORD | {"fields": RECORD["fields"][:3]}, *WRONG)]
    sent += [(Schema.ProtobufNative, CODE), (Schema.ProtobufNative, json.dumps(RECORD)), (Schema.String, CODE)]
    told = asyncio.run(asyncio.wait_for(declare(broker, sent), WAIT_MS / 1000))
    assert set(told) == {BaseCommand.PRODUCER_SUCCESS, BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, BaseCommand.ERROR}
    with httpx.Client(base_url=f"{broker.web_url}/admin/v2/schemas/public/default", timeout=WAIT_MS / 1000) as web:
        for data in (RECORD, *WRONG):
            body = {"type": "AVRO", "schema": json.dumps(data), "properties": dict.fromkeys(LOADING, TRAP)}
            statuses = [web.post(f"/by-rest/{what}", json=body).status_code for what in ("schema", "compatibility")]
            assert 500 not in statuses
        assert json.loads(web.get("/by-rest/schema").json()["data"])["java-class"] == TRAP
    assert not planted.mark.exists()


async def declare(broker: RunningBroker, schemas: list[tuple[int, str]]) -> list[int]:
    """Declare each schema by a producer, and by itself, on a topic of its own; returns the types of the answers."""
    reader, writer = await connect(broker.url)
    told = []
    for number, (type_, data) in enumerate(schemas):
        schema = Schema(name=CODE, type=type_, schema_data=data.encode())
        for name in LOADING:
            schema.properties.add(key=name, value=TRAP)
        topic = f"topic-{number}"
        asking = CommandGetOrCreateSchema(request_id=number, topic=topic, schema=schema)
        producing = CommandProducer(topic=topic, producer_id=number, request_id=number, schema=schema)
        for asked in (
            command("GET_OR_CREATE_SCHEMA", getOrCreateSchema=asking),
            command("PRODUCER", producer=producing),
        ):
            writer.write(asked)
            told.append((await answer(reader)).type)
    writer.close()
    return told
