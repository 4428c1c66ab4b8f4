"""Typed values: reads decode the bytes of `value` into columns, and writes encode columns as these bytes.

The type of values comes from the options `valueFormat` and `valueSchema`, or else from the topic's declared schema of
Pulsar's type JSON or AVRO, both of which contain an Avro record schema. Without options or schema, `value` is bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from pulsar_on_spark.datasource.columns import ColumnSelection, select_columns
from pulsar_on_spark.datasource.options import ReadOptions, Typed, WriteOptions
from pulsar_on_spark.datasource.topics import common_schema, schema_versions
from pulsar_on_spark.datasource.value_types import ValueSchema, topic_value_schema, value_schema
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.catalog.value_decoder import AVRO, ValueDecoder
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.entries.schemas.schema import TopicSchema
from pulsar_on_spark.topic.entries.values.values import ParseMode

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TypedValues:
    """The schema and codec of typed values, and the treatment of malformed values. Picklable.

    Attributes:
        schema: The fields and their codec.
        mode: The treatment of malformed values, as in `from_json`.
        schema_version: The version in Pulsar's eight bytes if the topic declares the schema; else None.
        writers: The schemas that values were written with; None if one schema decodes all values, as a schema from
            options and a schema of type JSON do.
    """

    schema: ValueSchema
    mode: ParseMode
    schema_version: bytes | None
    writers: WriterSchemas | None = None

    def decoder(self, names: Collection[str]) -> ValueDecoder:
        """Return the decoder of values to structs with the fields `names`; in mode FAILFAST, with all fields."""
        codec = self.schema.codec
        return ValueDecoder(
            codec if self.mode is ParseMode.FAILFAST else codec.narrowed(names), self.mode, self.writers
        )

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """Return structs encoded as values (errors as `topic.entries.values.ValueCodec.encode`)."""
        return self.schema.codec.encode(structs)


@dataclass(frozen=True)
class ReadSchema:
    """The columns of a read, and the decoder of its values. Picklable.

    Attributes:
        selection: The columns.
        decoder: The decoder of typed values; None if no typed field is selected, or `value` is bytes.
    """

    selection: ColumnSelection
    decoder: ValueDecoder | None


def read_schema(options: ReadOptions, view: View) -> ReadSchema:
    """Return the columns of a read, and the decoder of its values, for the topics in `view`.

    Raises:
        TopicNotFoundError: a named topic does not exist.
        InvalidArgumentError: the options cannot be used with the topics or their schemas.
    """
    writers = WriterSchemas.of(options.root, schema_versions(view, options))
    typed = typed_values(options.typed, common_schema(view, options), writers)
    selection = select_columns(
        options.columns,
        include_metadata=options.include_metadata,
        value_type=None if typed is None else typed.schema.read_type,
        field_prefix=options.field_prefix,
    )
    decoder = typed.decoder(selection.field_names) if typed is not None and selection.needs_values else None
    return ReadSchema(selection, decoder)


def typed_values(
    given: Typed, declared: SchemaRecord | None, writers: WriterSchemas | None = None
) -> TypedValues | None:
    """Return the type of values from the options or else from the topic's schema; None if values are bytes.

    A topic's schema that cannot be expressed in Spark columns is ignored, with a warning in the log.

    Args:
        given: The options.
        declared: The topic's latest schema; None without a schema.
        writers: For a read, the schemas that values were written with; None for a write.

    Raises:
        InvalidArgumentError: the options' schema cannot be parsed.
    """
    mode = ParseMode(given.mode)
    if given.format is not None and given.schema is not None:
        return TypedValues(value_schema(given.format, given.schema), mode, None)
    if declared is None or declared.type not in (AVRO, "JSON"):
        return None
    try:
        schema = topic_value_schema(declared.type, declared.data)
    except InvalidArgumentError as error:
        _LOGGER.warning(
            "Values of %s are bytes, because Spark has no columns for its schema: %s",
            declared.name,
            error,
            extra={"topic": declared.name},
        )
        return None
    return TypedValues(schema, mode, declared.version.to_bytes(8, "big"), writers if declared.type == AVRO else None)


def schema_to_register(options: WriteOptions) -> TopicSchema | None:
    """Return the schema that a write registers with its topic; None if option `registerSchema` is false.

    Raises:
        InvalidArgumentError: the schema cannot be parsed, or cannot be expressed in Pulsar's type of the same format.
    """
    given = options.typed
    if not options.register_schema or given.format is None or given.schema is None:
        return None
    return TopicSchema.parse(given.format, given.schema)


def typed_as(schema: TopicSchema, version: int | None = None) -> TypedValues:
    """Return the typed values of a topic's schema; `version` is the schema's version, None before it is registered."""
    stamp = None if version is None else version.to_bytes(8, "big")
    return TypedValues(topic_value_schema(schema.type, schema.data), ParseMode.PERMISSIVE, stamp)
