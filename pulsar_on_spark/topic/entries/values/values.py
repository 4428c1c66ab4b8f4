"""Typed values: the bytes of messages to Arrow structs and back, as JSON or Avro.

`ValueCodec` holds the settings of a read or a write, and is pickled to tasks; `json_values`, `json_texts` and
`avro_values` do the work. `datasource.value_types` makes a codec from Spark's types and schema texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import pyarrow as pa

from pulsar_on_spark.model.errors import IncompatibleSchemaError, InvalidArgumentError
from pulsar_on_spark.topic.entries.values.avro_values import decode_avro, encode_avro
from pulsar_on_spark.topic.entries.values.json_texts import encode_json
from pulsar_on_spark.topic.entries.values.json_values import decode_json

ValueFormat = Literal["json", "avro"]


class ParseMode(Enum):
    """Treatment of values that do not fit the schema: the option `mode` of Spark's `from_json` and `from_avro`."""

    PERMISSIVE = "PERMISSIVE"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """The encoding of a topic's values.

    Attributes:
        format: `json` or `avro`.
        arrow_type: The fields, as pyspark's `to_arrow_type` converts the Spark type.
        avro_schema: The Avro record schema as JSON text for `avro`; None for `json`.
    """

    format: ValueFormat
    arrow_type: pa.StructType
    avro_schema: str | None = None

    def __post_init__(self) -> None:
        if (self.format == "avro") != (self.avro_schema is not None):
            raise InvalidArgumentError("Values in avro need an Avro schema, and values in json take none.")

    def narrowed(self, names: Collection[str]) -> ValueCodec:
        """Return a codec that decodes only the fields with these names, in the order of the schema."""
        return replace(self, arrow_type=pa.struct([field for field in self.arrow_type if field.name in names]))

    def decode(
        self,
        values: pa.BinaryArray,
        mode: ParseMode,
        name_row: Callable[[int], str],
        writer_schema: str | None = None,
    ) -> pa.StructArray:
        """Return a struct for each row; a row without a value is null.

        Args:
            values: The column `value`.
            mode: In PERMISSIVE, rows (in JSON, fields) that do not fit are null. In FAILFAST, the first of them is an
                error.
            name_row: Returns a row's message id and topic, for the error.
            writer_schema: The Avro schema that the values were written with; None for `avro_schema`.

        Raises:
            IncompatibleSchemaError: in FAILFAST, a value does not fit.
        """

        def on_bad_row(row: int, reason: str) -> None:
            if mode is ParseMode.FAILFAST:
                raise IncompatibleSchemaError(
                    f"The value of {name_row(row)} does not fit its {self.format} schema: {reason}; set the option "
                    "mode to PERMISSIVE to read such values as null."
                )

        if self.avro_schema is not None:
            return decode_avro(values, self.arrow_type, self.avro_schema, on_bad_row, writer_schema)
        return decode_json(values, self.arrow_type, on_bad_row)

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """Return the value of each row as bytes; null for a null row.

        Fields of the schema that `structs` lacks are encoded as null.

        Raises:
            IncompatibleSchemaError: a row cannot be written in the Avro schema.
        """
        if self.avro_schema is not None:
            return encode_avro(structs, self.avro_schema)
        return encode_json(structs)
