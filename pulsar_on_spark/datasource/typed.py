"""Typed values: how `value` becomes columns on reading and is packed from columns on writing.

The type comes from the options `valueFormat` and `valueSchema`, else from the schema declared on the topic (Pulsar's
JSON and AVRO types, both of which carry an Avro record); without either, `value` is bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pulsar_on_spark.datasource.columns import ColumnSelection, select_columns
from pulsar_on_spark.datasource.options import ReadOptions, Typed
from pulsar_on_spark.datasource.topics import common_schema
from pulsar_on_spark.datasource.value_types import ValueSchema, topic_value_schema, value_schema
from pulsar_on_spark.metadata.records import SchemaRecord
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.values import ParseMode


@dataclass(frozen=True)
class TypedValues:
    """How values are decoded and encoded. Picklable.

    Attributes:
        schema: The fields and their codec.
        mode: What malformed values become, as in `from_json`.
        schema_version: Pulsar's eight bytes where the topic declares the schema, else None.
    """

    schema: ValueSchema
    mode: ParseMode
    schema_version: bytes | None

    def decode(self, column: pa.BinaryArray, name_row: Callable[[int], str]) -> pa.StructArray:
        """Values as structs of the fields.

        Raises:
            IncompatibleSchemaError: a value is malformed and the mode is FAILFAST; `name_row` says which.
        """
        return self.schema.codec.decode(column, self.mode, name_row)

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """Structs of the fields as values (errors as `topic.values.ValueCodec.encode`)."""
        return self.schema.codec.encode(structs)


@dataclass(frozen=True)
class ReadSchema:
    """The columns of a read and how values are decoded. Picklable."""

    selection: ColumnSelection
    typed: TypedValues | None


def read_schema(options: ReadOptions) -> ReadSchema:
    """The columns of a read.

    Raises:
        NotARootError, TopicNotFoundError, InvalidArgumentError: the options don't fit what is there.
    """
    root = Root.shared(options.root)
    typed = typed_values(options.typed, common_schema(root.store.view(), options))
    selection = select_columns(
        options.columns,
        include_metadata=options.include_metadata,
        value_type=None if typed is None else typed.schema.read_type,
    )
    return ReadSchema(selection, typed)


def typed_values(given: Typed, declared: SchemaRecord | None) -> TypedValues | None:
    """How values are typed: by the options, else by the topic's schema, else not at all (None).

    Raises:
        InvalidArgumentError: the schema can't be parsed.
    """
    mode = ParseMode(given.mode)
    if given.format is not None and given.schema is not None:
        return TypedValues(value_schema(given.format, given.schema), mode, None)
    schema = None if declared is None else topic_value_schema(declared.type, declared.data)
    if declared is None or schema is None:
        return None
    return TypedValues(schema, mode, declared.version.to_bytes(8, "big"))
