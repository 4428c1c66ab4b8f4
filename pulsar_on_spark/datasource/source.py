"""`format("pulsarpy")`: the data source that Spark creates from the options, with its four readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pulsar_on_spark.datasource.batch_reader import PulsarBatchReader
from pulsar_on_spark.datasource.option_names import warn_without_effect
from pulsar_on_spark.datasource.options import ReadOptions, read_options, write_options
from pulsar_on_spark.datasource.typed import ReadSchema, read_schema
from pulsar_on_spark.datasource.user_errors import one_sentence
from pulsar_on_spark.datasource.writer import PulsarBatchWriter, PulsarStreamWriter, in_sink_runner
from pulsar_on_spark.metadata.state import DurableView
from pulsar_on_spark.model.errors import InvalidArgumentError, PulsarpyError
from pulsar_on_spark.topic.catalog.root_handle import RootHandle

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
        """Return the format's name, `pulsarpy`."""
        return "pulsarpy"

    @one_sentence
    def schema(self) -> StructType:
        """Return the columns of a read, as the options and the topics' declared schema determine them."""
        # Spark calls this once for each `load`, in a separate process; later steps parse the options again.
        warn_without_effect(self.options, "read")
        options = read_options(self.options)
        return read_schema(options, _durable_view(options)).selection.spark_schema

    @one_sentence
    def reader(self, schema: StructType) -> PulsarBatchReader:
        """Return a batch reader (errors as `read_options`, `read_schema` and `PulsarBatchReader`)."""
        return PulsarBatchReader(*self._read(schema))

    def streamReader(self, schema: StructType) -> PulsarStreamReader | RefusedStream:
        """Return a streaming reader, or for a stream that cannot be read a `RefusedStream`, which raises the error."""
        from pulsar_on_spark.datasource.stream_reader import PulsarStreamReader

        try:
            options, read, _ = self._read(schema)
            return PulsarStreamReader(options, read)
        except PulsarpyError as error:
            return RefusedStream(error)

    @one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> PulsarBatchWriter:
        """Return a batch writer (errors as `write_options` and `plan_write`)."""
        warn_without_effect(self.options, "write")
        return PulsarBatchWriter(write_options(self.options), schema, overwrite)

    @one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarStreamWriter:
        """Return a streaming writer. For each micro-batch, Spark creates one to write it and another to commit it."""
        if not in_sink_runner():
            self._warn_once()
        return PulsarStreamWriter(write_options(self.options), schema, overwrite)

    def _read(self, schema: StructType) -> tuple[ReadOptions, ReadSchema, DurableView]:
        options = read_options(self.options)
        view = _durable_view(options)
        read = read_schema(options, view)
        if schema != read.selection.spark_schema:
            raise InvalidArgumentError(
                f"The columns of this read are {', '.join(read.selection.names)}, not {', '.join(schema.names)}: "
                "leave out .schema(...), and choose columns with option columns and their types with option "
                "valueSchema; if the topic's schema has changed since load(), call load() again."
            )
        return options, read, view

    def _warn_once(self) -> None:
        """Warn once in each process, because Spark plans most of a query's micro-batches in the same process."""
        options = tuple(sorted(self.options.items()))
        if options not in _warned_of:
            _warned_of.add(options)
            warn_without_effect(self.options, "write")


_warned_of: set[tuple[tuple[str, str], ...]] = set()


def _durable_view(options: ReadOptions) -> DurableView:
    """Return a durable view of the metadata of the root that the options name."""
    return RootHandle.shared(options.root).store.view(durable=True)


class RefusedStream(DataSourceStreamReader):
    """Reader of a stream that cannot be read: each of its methods raises the error, which Spark then shows.

    An error that `PulsarDataSource.streamReader` raises would be lost: pyspark 4.2.0's source runner would then fail on
    its unassigned variable `reader` in a `finally` clause.
    """

    def __init__(self, error: PulsarpyError) -> None:
        self._error = error

    @one_sentence
    def initialOffset(self) -> NoReturn:
        """Raise the error. For a new query, Spark calls this method first."""
        raise self._error

    @one_sentence
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> NoReturn:
        """Raise the error. For a query restarted between two batches, Spark calls this method first."""
        raise self._error

    @one_sentence
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> NoReturn:
        """Raise the error. For a query restarted within a batch, Spark calls this method first."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the error. Spark never calls this method, because another method has already raised the error."""
        raise self._error
