"""Conversion of value schemas, from the option `valueSchema` or the schema registry, to Spark types and codecs.

`value_schema` parses the option `valueSchema`: Spark's DDL or the JSON of a `StructType`; for the format avro also an
Avro record schema. `topic_value_schema` parses a topic's declared schema: Pulsar's types JSON and AVRO both contain an
Avro record schema.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_schemas import arrow_of_avro
from pulsar_on_spark.topic.entries.values.spark_schemas import arrow_of_spark, avro_text
from pulsar_on_spark.topic.entries.values.values import ValueCodec, ValueFormat


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The schema of typed values: the fields that Spark sees, and the codec of their bytes.

    Attributes:
        write_type: The declared fields, nullable or not.
        read_type: The same fields, all nullable, because a value that cannot be decoded becomes null.
        codec: The codec of the values' bytes.
    """

    write_type: StructType
    read_type: StructType
    codec: ValueCodec


def value_schema(value_format: str, text: str) -> ValueSchema:
    """Return the parsed options `valueFormat` and `valueSchema`.

    Raises:
        InvalidArgumentError: the format is unknown or the schema cannot be parsed; the error names the option.
    """
    match value_format.strip().lower():
        case "json":
            return _made("json", _struct(arrow_of_spark(text)), None)
        case "avro":
            avro = avro_text(text)
            return _made("avro", spark_of_avro(avro), avro)
    raise InvalidArgumentError(f"Option valueFormat is {value_format!r}: give json or avro.")


def topic_value_schema(schema_type: str, text: str) -> ValueSchema:
    """Return the parsed schema of the registry (`SchemaRecord`), of type JSON or AVRO.

    Raises:
        InvalidArgumentError: the schema's text has no Spark type.
    """
    if schema_type == "JSON":
        return _made("json", spark_of_avro(text, logical_types=False), None)
    return _made("avro", spark_of_avro(text), text)


def spark_of_avro(text: str, *, logical_types: bool = True) -> StructType:
    """Return the type that Spark's `from_avro` gives an Avro record schema (see `topic.entries.values.avro_schemas`).

    Args:
        text: The schema's JSON.
        logical_types: False for Pulsar's JSON type, whose times are plain numbers.

    Raises:
        InvalidArgumentError: the text is not an Avro record schema, or has no Spark type.
    """
    return _struct(arrow_of_avro(text, logical_types=logical_types))


def _struct(kind: pa.StructType) -> StructType:
    made = from_arrow_type(kind, prefer_timestamp_ntz=True)
    assert isinstance(made, StructType), "Arrow's struct is a StructType in Spark"
    return made


def as_nullable(kind: DataType) -> DataType:
    """Return the type with every field, element and map value nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, as_nullable(field.dataType), True) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(as_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(as_nullable(kind.keyType), as_nullable(kind.valueType), True)
    return kind


def _made(value_format: ValueFormat, declared: StructType, avro: str | None) -> ValueSchema:
    read_type = as_nullable(declared)
    if not isinstance(read_type, StructType) or not read_type.fields:
        raise InvalidArgumentError("Option valueSchema has no fields: give at least one.")
    if repeated := [name for name in read_type.names if read_type.names.count(name) > 1]:
        raise InvalidArgumentError(f"Option valueSchema has the field {repeated[0]!r} twice: rename one.")
    arrow_type: pa.StructType = to_arrow_type(read_type, timezone="UTC")
    return ValueSchema(declared, read_type, ValueCodec(value_format, arrow_type, avro))
