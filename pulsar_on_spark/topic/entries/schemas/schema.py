"""A schema in Pulsar's form (type, text and properties), the check of that form, and comparison for equality."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.schemas.avro import fingerprint, parse_avro
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.spark_schemas import SparkSchema, avro_text

SCHEMA_TYPES: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"),
    *("DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME"),
    *("PROTOBUF_NATIVE", "AUTO_CONSUME", "EXTERNAL"),
)
"""Pulsar's schema types, each at its number in the protocol."""
AVRO_BASED: Final = ("AVRO", "JSON", "PROTOBUF")
"""Types whose text is an Avro schema."""
MAX_SCHEMA_BYTES: Final = 1 << 20
"""Maximum size of a schema's text: each version is a row of the metadata, which every process holds in memory."""
_SPARK_TYPES: Final = ("JSON", "AVRO")


class SchemaOwner(NamedTuple):
    """The owner of schema versions: the topic's full name, and the id under which its versions are stored."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema of a topic's values.

    Attributes:
        type: The encoding of values, one of SCHEMA_TYPES.
        data: An Avro schema for AVRO_BASED; for KEY_VALUE the JSON text {"key": data, "value": data}, as in Pulsar's
            REST API; "" for types without a text.
        properties: Properties that the client set. Those of KEY_VALUE include the types of key and value.
    """

    type: str
    data: str
    properties: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @classmethod
    def parse(cls, type_: str, data: str | SparkSchema) -> TopicSchema:
        """Make a topic's schema from a schema that a user of Spark declares; it must have columns.

        Args:
            type_: The encoding of values, JSON or AVRO.
            data: DDL, a `StructType`, the JSON of a `StructType`, or an Avro record schema.

        Raises:
            InvalidArgumentError: the type is not JSON or AVRO, or the schema cannot be read or has no Spark type.
        """
        if type_.upper() not in _SPARK_TYPES:
            raise InvalidArgumentError(f"Schema type {type_!r} is not known: give JSON or AVRO.")
        schema = cls(type_.upper(), avro_text(data, logical_types=type_.upper() == "AVRO"))
        schema.check()
        arrow_of_avro(schema.data)
        return schema

    @classmethod
    def of_record(cls, record: SchemaRecord) -> TopicSchema:
        """Return the schema that a record stores."""
        return cls(record.type, record.data, record.properties)

    def to_record(self, owner: SchemaOwner, version: int) -> SchemaRecord:
        """Make the record of this schema as a version of a topic's schema, created now."""
        return SchemaRecord(
            name=owner.name,
            topic_id=owner.topic_id,
            version=version,
            type=self.type,
            data=self.data,
            properties=dict(self.properties),
            created_at=datetime.now(UTC),
        )

    def check(self) -> None:
        """Check a schema that a client sends.

        Raises:
            InvalidArgumentError: the type is unknown, or the text is too long or not valid for the type.
        """
        if self.type not in SCHEMA_TYPES:
            raise InvalidArgumentError(
                f"Schema type {self.type!r} is not known: give one of {', '.join(SCHEMA_TYPES)}."
            )
        if len(self.data) > MAX_SCHEMA_BYTES or len(self.data.encode()) > MAX_SCHEMA_BYTES:
            raise InvalidArgumentError(
                f"The schema has {len(self.data)} characters, above the limit of {MAX_SCHEMA_BYTES} bytes: shorten it."
            )
        if self.type in AVRO_BASED:
            parse_avro(self.data)
        if self.type == "KEY_VALUE":
            for part in self.key_and_value():
                part.check()

    def key_and_value(self) -> tuple[TopicSchema, TopicSchema]:
        """Return the schemas of key and value in a KEY_VALUE schema.

        Raises:
            InvalidArgumentError: the text or the properties are not valid for KEY_VALUE.
        """
        try:
            types = [self.properties[f"{part}.schema.type"] for part in ("key", "value")]
            key, value = map(TopicSchema, types, _texts_of(self.data))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidArgumentError(
                f"The KEY_VALUE schema has no key and value, or no properties with their types ({error!r}): correct it."
            ) from error
        return key, value

    def identity(self) -> tuple[object, ...]:
        """Return a value for comparisons: two well-formed schemas are equal if and only if their values are equal.

        White space, the order of attributes, and documentation in Avro make no difference.
        """
        if self.type in AVRO_BASED:
            return self.type, fingerprint(self.data)
        if self.type == "KEY_VALUE":
            return self.type, _encoding(self), *(part.identity() for part in self.key_and_value())
        return self.type, self.data


def _encoding(schema: TopicSchema) -> str:
    """Return "SEPARATED" if a KEY_VALUE schema's key is in a message's key, "INLINE" if it is in a message's value."""
    return schema.properties.get("kv.encoding.type", "INLINE")


@lru_cache(maxsize=8)
def _texts_of(key_value: str) -> tuple[str, str]:
    """Return the texts of key and value in a KEY_VALUE schema's text."""
    texts = json.loads(key_value)
    return _text(texts["key"]), _text(texts["value"])


def _text(part: object) -> str:
    """Return the text of a KEY_VALUE schema's part, which REST clients send as text or as a JSON value."""
    return part if isinstance(part, str) else json.dumps(part)
