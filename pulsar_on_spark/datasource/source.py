"""`format("pulsarpy")`: what Spark creates from the options, and the four faces that it hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pulsar_on_spark.datasource.batch_reader import PulsarBatchReader
from pulsar_on_spark.datasource.options import read_options, write_options
from pulsar_on_spark.datasource.typed import ReadSchema, read_schema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.datasource.writer import PulsarBatchWriter, PulsarStreamWriter

if TYPE_CHECKING:
    from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader


class PulsarDataSource(DataSource):
    """Topics as a Spark data source; options and columns are in docs/options.md.

    Example:
        >>> df.write.format("pulsarpy").mode("append").option("topic", "clicks").save("/data/root")
        >>> spark.read.format("pulsarpy").option("topic", "clicks").load("/data/root").count()
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsarpy"

    @one_sentence
    def schema(self) -> StructType:
        """The columns of a read, from the options and the topics' declared schema."""
        return self._read_schema().selection.spark_schema

    @one_sentence
    def reader(self, schema: StructType) -> PulsarBatchReader:
        """A batch read."""
        return PulsarBatchReader(read_options(self.options), self._read_schema())

    @one_sentence
    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        """A streaming read."""
        from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader

        return PulsarStreamReader(read_options(self.options), self._read_schema())

    @one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> PulsarBatchWriter:
        """A batch write."""
        return PulsarBatchWriter(write_options(self.options), schema, overwrite)

    @one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarStreamWriter:
        """A streaming write."""
        return PulsarStreamWriter(write_options(self.options), schema, overwrite)

    def _read_schema(self) -> ReadSchema:
        return read_schema(read_options(self.options))
