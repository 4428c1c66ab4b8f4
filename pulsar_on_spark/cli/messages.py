"""`pulsarpy produce`, `consume` and `read`: messages by way of a broker, or straight out of a root."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import typer

from pulsar_on_spark.cli import output
from pulsar_on_spark.cli.arguments import AsJson, RootArgument, RootOption, Topic
from pulsar_on_spark.cli.broker_target import BrokerTarget
from pulsar_on_spark.cli.http_admin import topic_path
from pulsar_on_spark.cli.message_values import ValueSchemas, as_text
from pulsar_on_spark.cli.pulsar_client import ServiceUrl, pulsar_errors, service_client
from pulsar_on_spark.cli.root_target import RootTarget
from pulsar_on_spark.cli.targets import UrlOption, open_target
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.ids import EARLIEST
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.topic import catalog, chain
from pulsar_on_spark.topic.reading import SliceReader
from pulsar_on_spark.topic.root import Root
from pulsar_on_spark.topic.tail.tail import Tail

if TYPE_CHECKING:
    import pulsar

_COLUMNS: Final = ("entry_id", "batch_index", "publish_time", "key", "value", "schema_version")
_NO_SCHEMA: Final = ValueSchemas(())
_LOOK_S: Final = 1.0
"""How long the client is asked at once: it does not hear Ctrl-C meanwhile."""


def produce(
    topic: Topic,
    messages: Annotated[list[str] | None, typer.Option("--message", "-m", help="A message; once for each.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of all of them.")] = None,
    properties: Annotated[list[str] | None, typer.Option("--property", help="name=value; once for each.")] = None,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages: those of --message, else a line of standard input each."""
    given = dict(_pair(each) for each in properties or ())
    lines = messages if messages else (line.rstrip("\n") for line in sys.stdin)
    sent = 0
    with pulsar_errors(), closing(service_client(url)) as client:
        producer = client.create_producer(topic, block_if_queue_full=True, batching_enabled=True)
        failed: list[Any] = []
        for line in lines:
            producer.send_async(
                line.encode(),
                callback=lambda result, _: failed.append(result) if result.value else None,
                partition_key=key,
                properties=given or None,
            )
            sent += 1
        producer.flush()
    if failed:
        raise InvalidArgumentError(f"{len(failed)} of {sent} messages were not published to {topic}: {failed[0]}.")
    output.done(f"Published {sent:,} messages to {topic}.", as_json, topic=topic, messages=sent)


def consume(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Its name; made if it is not there.")],
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Stop after so many; 0 for all that come.")] = 1,
    earliest: Annotated[bool, typer.Option(help="Let a new subscription begin at the first message.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Stop when none came for so long; 0 waits until Ctrl-C.")
    ] = 10,
    url: ServiceUrl = None,
    as_json: AsJson = False,
) -> None:
    """Receive messages and acknowledge them; exits with 1 if fewer came than --number."""
    with pulsar_errors(), closing(service_client(url)) as client:
        import pulsar

        start = pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest
        # Else a batch of which the last message is not taken comes again as a whole.
        consumer = client.subscribe(
            topic, subscription, pulsar.ConsumerType.Shared, initial_position=start, batch_index_ack_enabled=True
        )
        received = 0
        while (not number or received < number) and (message := _next(consumer, timeout or math.inf)) is not None:
            _print_message(message, _NO_SCHEMA, as_json)
            consumer.acknowledge(message)
            received += 1
    if received < number:
        output.fail(f"{received:,} of {number:,} messages came from {topic}: none for {timeout:g} s, see --timeout.")
        raise typer.Exit(1)


def _next(consumer: pulsar.Consumer, timeout_s: float) -> pulsar.Message | None:
    """The next message; None if none comes in this time."""
    import pulsar

    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            return consumer.receive(math.ceil(min(left_s, _LOOK_S) * 1000))
        except pulsar.Timeout:
            continue
    return None


def read(
    topic: Topic,
    root: RootArgument = None,
    root_option: RootOption = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="The first so many, of each partition.")] = 10,
    last: Annotated[bool, typer.Option("--last", help="The last so many of each instead.")] = False,
    url: UrlOption = None,
    as_json: AsJson = False,
) -> None:
    """Print messages of a topic; nothing is acknowledged. From a root no broker is needed."""
    target = open_target(root, root_option, url)
    if not isinstance(target, RootTarget):
        if last:
            raise InvalidArgumentError("--last reads from a root: give one instead of --url.")
        _read_by_broker(target, topic, number, as_json)
        return
    rows = _rows(target.root, topic, number, last=last)
    schemas = ValueSchemas(target.schemas(topic))
    for row in rows:
        _print(row["id"], row["publish_ms"], row["key"], schemas.text(row["value"], row["schema_version"]), as_json)


def _read_by_broker(target: BrokerTarget, topic: str, number: int, as_json: bool) -> None:
    with pulsar_errors(), closing(service_client(target.admin.url)) as client:
        import pulsar

        target.admin.get(*topic_path(topic), "partitions")  # a reader would make the topic where there is none
        schemas = ValueSchemas(target.schemas(topic))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        for _ in range(number):
            if not reader.has_message_available():
                return
            _print_message(reader.read_next(), schemas, as_json)


def _rows(root: Root, topic: str, number: int, *, last: bool) -> Iterator[dict[str, Any]]:
    """The first or last messages of each partition."""
    with closing(Tail(root)) as tail:
        view = root.store.view(durable=True)
        parts = catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))
        view = tail.look(parts, view)
        reader = SliceReader(root.path, root.storage_paths(view), _COLUMNS)
        for part in parts:
            end = chain.read_limit(view, part.topic_id)
            slices = chain.plan_range(view, part.name, part.topic_id, part.partition, EARLIEST, end).slices
            rows = (row for each in (reversed(slices) if last else slices) for row in _of_slice(reader, each, last))
            taken = [row for row, _ in zip(rows, range(number), strict=False)]
            yield from reversed(taken) if last else taken


def _of_slice(reader: SliceReader, slice_: chain.SegmentSlice, last: bool) -> Iterable[dict[str, Any]]:
    found = [row for at, batch in reader.read(slice_) for row in _of_batch(at, batch)]
    return reversed(found) if last else found


def _of_batch(slice_: chain.SegmentSlice, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        entry = row["entry_id"] + slice_.segment.entry_offset
        published = row["publish_time"]
        yield {
            "id": _id(slice_.segment.ledger_id, entry, row["batch_index"]),
            "publish_ms": 0 if published is None else int(published.timestamp() * 1000),
            "key": row["key"],
            "value": row["value"],
            "schema_version": row["schema_version"],
        }


def _print_message(message: pulsar.Message, schemas: ValueSchemas, as_json: bool) -> None:
    id_ = message.message_id()
    _print(
        _id(id_.ledger_id(), id_.entry_id(), id_.batch_index()),
        message.publish_timestamp(),
        message.partition_key() or None,
        schemas.text(message.data(), _schema_version(message)),
        as_json,
    )


def _schema_version(message: pulsar.Message) -> bytes | None:
    try:
        version: str = message.schema_version()
        return version.encode()
    except UnicodeDecodeError:  # the client takes the eight bytes for text
        return None


def _id(ledger: int, entry: int, batch_index: int | None) -> str:
    """As people read it: with the place in the batch where there is one."""
    return f"{ledger}:{entry}" if batch_index is None or batch_index < 0 else f"{ledger}:{entry}:{batch_index}"


def _print(id_: str, publish_ms: int, key: str | bytes | None, value: str | None, as_json: bool) -> None:
    shown_key = as_text(key) if isinstance(key, bytes) else key
    if as_json:
        line = {"id": id_, "publish_time": publish_ms, "key": shown_key, "value": value}
        sys.stdout.write(json.dumps(line) + "\n")
    else:
        output.say(f"{id_}  {'-' if shown_key is None else shown_key}  {'-' if value is None else value}")


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise InvalidArgumentError(f"Property {text!r} is not name=value: write it so.")
    return name, value
