"""Decoding of typed values, each with the schema that it was written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.errors import IncompatibleSchemaError
from pulsar_on_spark.topic.catalog.writer_schemas import WriterSchemas
from pulsar_on_spark.topic.entries.values.values import ParseMode, ValueCodec

AVRO: Final = "AVRO"
_VERSION: Final = "schema_version"


@dataclass(frozen=True)
class ValueDecoder:
    """Decoder of a read's values. Picklable.

    Attributes:
        codec: The fields to decode, and the format of the values.
        mode: The treatment of malformed values, as in `from_json`.
        writers: The schemas that values were written with; None if all values are decoded with one schema, as for a
            schema from the read's options and for type JSON.
    """

    codec: ValueCodec
    mode: ParseMode
    writers: WriterSchemas | None = None

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """The columns of `SEGMENT_SCHEMA` that `decode` needs for values, and to name a message in its errors."""
        versions = () if self.writers is None else (_VERSION,)
        names = ("entry_id",) if self.mode is ParseMode.FAILFAST else ()
        return ("value", *versions, *names)

    def decode(self, batch: pa.RecordBatch, topic: str, name_row: Callable[[int], str]) -> pa.StructArray:
        """Decode values as structs of the fields.

        Args:
            batch: Messages, with the columns of `segment_columns` at least.
            topic: The messages' topic.
            name_row: Returns the name of a row's message, for errors.

        Raises:
            IncompatibleSchemaError: the mode is FAILFAST, and a value is malformed, or was not written with a known
                schema version of type AVRO.
            TopicNotFoundError, MetadataError: as `WriterSchemas.find`.
        """
        values = batch.column("value")
        if self.writers is None:
            return self.codec.decode(values, self.mode, name_row)
        versions = batch.column(_VERSION)
        parts: list[pa.StructArray] = []
        positions: list[pa.Array] = []
        for version in versions.unique().to_pylist():
            rows = pc.indices_nonzero(pc.is_null(versions) if version is None else pc.equal(versions, version))
            parts.append(self._part(values.take(rows), topic, version, partial(_named, name_row, rows)))
            positions.append(rows)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts).take(pc.array_sort_indices(pa.concat_arrays(positions)))

    def _part(
        self, values: pa.BinaryArray, topic: str, version: bytes | None, name_row: Callable[[int], str]
    ) -> pa.StructArray:
        """Decode values that were written with one schema version; `version` is None for messages without one."""
        assert self.writers is not None, "or all are read alike"
        written = self.writers.find(topic, version) if version else (AVRO, None)
        if written is not None and written[0] == AVRO:
            return self.codec.decode(values, self.mode, name_row, written[1])
        if self.mode is ParseMode.FAILFAST:
            how = "with an unknown version of its schema" if written is None else f"as {written[0]}, not as AVRO"
            raise IncompatibleSchemaError(
                f"The value of {name_row(0)} was written {how}; set the option mode to PERMISSIVE to read it as null."
            )
        return pa.nulls(len(values), self.codec.arrow_type)


def _named(name_row: Callable[[int], str], rows: pa.Array, row: int) -> str:
    return name_row(rows[row].as_py())
