"""`pulsarpy read`: read messages through a broker or directly from a root, without acknowledging them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.http_admin import topic_path
from pulsar_on_spark.cli.message_lines import id_text, print_line, print_message
from pulsar_on_spark.cli.message_values import ValueSchemas
from pulsar_on_spark.cli.pulsar_client import service_client
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

    from pulsar_on_spark.root import Root
    from pulsar_on_spark.topic.data_path.reading import SliceReader
    from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

_COLUMNS: Final = ("entry_id", "batch_index", "publish_time", "key", "value", "schema_version")
_REMEDY: Final = "read the topic in Spark, with option failOnDataLoss set to false"


def read(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    number: Annotated[
        int, typer.Option("--num-messages", "--number", "-n", min=1, help="Number of messages, from each partition.")
    ] = 10,
    last: Annotated[bool, typer.Option("--last", help="Read the last messages instead of the first.")] = False,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Print messages of a topic, without acknowledging them. To read from a root, no broker is needed."""
    target = open_target(root, root_option, url)
    if isinstance(target, BrokerTarget):
        if last:
            raise InvalidArgumentError("Option --last needs a root: give a root instead of --url, or leave --last out.")
        _read_by_broker(target, topic, number, as_json)
        return
    rows = _rows(target.root, topic, number, last=last)
    schemas = ValueSchemas(target.schemas(topic))
    for row in rows:
        print_line(row["id"], row["publish_ms"], row["key"], schemas.text(row["value"], row["schema_version"]), as_json)


def _read_by_broker(target: BrokerTarget, topic: str, number: int, as_json: bool) -> None:
    with service_client(target.admin.url) as client:
        import pulsar

        target.admin.get(*topic_path(topic), "partitions")  # fails for a missing topic; a reader would create it
        schemas = ValueSchemas(target.schemas(topic))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        for _ in range(number):
            if not reader.has_message_available():
                return
            print_message(reader.read_next(), schemas, as_json)


def _rows(root: Root, topic: str, number: int, *, last: bool) -> Iterator[dict[str, Any]]:
    """Yield the first or last `number` messages of each partition, in order."""
    from pulsar_on_spark.topic.catalog import catalog
    from pulsar_on_spark.topic.data_path.reading import SliceReader
    from pulsar_on_spark.topic.data_path.tail import Tail
    from pulsar_on_spark.topic.managed_ledger.chain import chain

    with closing(Tail(root)) as tail:
        durable = root.store.view(durable=True)
        parts = catalog.parts(durable, catalog.require_topic(durable, TopicName.parse(topic)))
        view = tail.read_view(parts, durable)
        reader = SliceReader(root.place, root.storage_paths(view), _COLUMNS, remedy=_REMEDY)
        for part in parts:
            end = chain.read_limit(view, part.topic_id)
            slices = chain.plan_range(view, part.name, part.topic_id, part.partition, EARLIEST, end).slices
            rows = (row for slice_ in (reversed(slices) if last else slices) for row in _of_slice(reader, slice_, last))
            taken = [row for row, _ in zip(rows, range(number), strict=False)]
            yield from reversed(taken) if last else taken


def _of_slice(reader: SliceReader, slice_: SegmentSlice, last: bool) -> Iterable[dict[str, Any]]:
    rows = [row for at, batch in reader.read(slice_) for row in _of_batch(at, batch)]
    return reversed(rows) if last else rows


def _of_batch(slice_: SegmentSlice, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        entry = row["entry_id"] + slice_.segment.entry_offset
        published = row["publish_time"]
        yield {
            "id": id_text(slice_.segment.ledger_id, entry, row["batch_index"]),
            "publish_ms": 0 if published is None else int(published.timestamp() * 1000),
            "key": row["key"],
            "value": row["value"],
            "schema_version": row["schema_version"],
        }
