"""Messages in and out of topics without Spark: what tasks and the driver do, in a few lines for tests."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.metadata.records import CompactionRecord
from pulsar_on_spark.metadata.state import View
from pulsar_on_spark.model.clock import current_ms
from pulsar_on_spark.model.ids import EARLIEST, EntryId, LedgerId, MessageId, WriteId
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.root import Root
from pulsar_on_spark.topic.catalog import catalog
from pulsar_on_spark.topic.data_path.attach import TaskOutput, attach
from pulsar_on_spark.topic.data_path.reading import SliceReader
from pulsar_on_spark.topic.data_path.routing import HashingScheme
from pulsar_on_spark.topic.data_path.task_writer import TaskWriter, WriteTarget
from pulsar_on_spark.topic.data_path.transactions import Transaction
from pulsar_on_spark.topic.maintenance.compaction.reading import compacted_slices
from pulsar_on_spark.topic.managed_ledger.chain import chain
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

log = logging.getLogger(__name__)

ROW_SCHEMA = pa.schema(
    [field for field in SEGMENT_SCHEMA if field.name not in ("ledger_id", "entry_id", "batch_index")]
)
"""The argument of `TaskWriter.add`."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is stored: its id and every column that is not an id."""

    id: MessageId
    columns: tuple[tuple[str, object], ...]

    @property
    def value(self) -> bytes | None:
        """The payload."""
        found = dict(self.columns)["value"]
        assert found is None or isinstance(found, bytes)
        return found


def new_write_id() -> WriteId:
    """A fresh write id, as every construction of a writer takes one."""
    return WriteId(uuid.uuid4().hex)


def make_rows(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    """Rows in `ROW_SCHEMA` with these payloads and keys, published now."""
    count = len(values)
    columns: dict[str, Sequence[object]] = {
        "publish_time": [current_ms()] * count,
        "producer_name": ["test"] * count,
        "sequence_id": range(count),
        "key_b64": [False] * count,
        "value": values,
    }
    if keys is not None:
        columns["key"] = keys
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in ROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def target(root: Root, topic: str) -> WriteTarget:
    """The topic's partitions as a driver fixes them."""
    view = root.store.view()
    return WriteTarget(tuple(catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic)))))


def stage(root: Root, topics: dict[str, pa.RecordBatch], write_id: WriteId, task: int = 0) -> TaskOutput:
    """Stage rows as a task does: they become durable files that no topic refers to yet."""
    paths = root.writable_paths(root.store.view())
    writer = TaskWriter(write_id, task, paths, root.quorum, HashingScheme.JAVA_STRING_HASH)
    for name, rows in topics.items():
        writer.add(target(root, name), rows)
    return writer.finish()


def write(
    root: Root,
    topic: str,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    transaction: Transaction | None = None,
) -> WriteId:
    """Write as a job of one task: stage the rows and attach them."""
    write_id = new_write_id()
    attach(root.store, write_id, [stage(root, {topic: make_rows(values, keys)}, write_id)], transaction)
    return write_id


def read(root: Root, topic: str, *, fail_on_data_loss: bool = True, view: View | None = None) -> list[Message]:
    """Every message of a topic, partition by partition, in order."""
    seen = view or root.store.view(durable=True)
    reader = SliceReader(root.place, root.storage_paths(seen), tuple(SEGMENT_SCHEMA.names), fail_on_data_loss)
    found: list[Message] = []
    for part in catalog.parts(seen, catalog.require_topic(seen, TopicName.parse(topic))):
        end = chain.read_limit(seen, part.topic_id)
        plan = chain.plan_range(seen, part.name, part.topic_id, part.partition, EARLIEST, end)
        assert not plan.losses, plan.losses
        for slice_ in plan.slices:
            for where, batch in reader.read(slice_):
                found += _messages(where, batch)
    return found


def values(root: Root, topic: str) -> list[bytes | None]:
    """The payloads of every message of a topic, partition by partition, in order."""
    return [message.value for message in read(root, topic)]


def read_compacted(root: Root, topic: str) -> list[Message]:
    """Every message of a topic's compacted ledgers, partition by partition, in order."""
    view = root.store.view(durable=True)
    found: list[Message] = []
    for part in catalog.parts(view, catalog.require_topic(view, TopicName.parse(topic))):
        record = view.get(CompactionRecord, part.topic_id)
        for slice_ in () if record is None else compacted_slices(view, part, record):
            for ledger, batch in slice_.read(root.current_storage_paths, None, lambda *bad: log.warning("%s", bad)):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    assert row.pop("ledger_id") == ledger
                    id_ = MessageId(ledger, EntryId(row.pop("entry_id")), part.partition, row.pop("batch_index"))
                    found.append(Message(id_, tuple(row.items())))
    return found


def _messages(where: SegmentSlice, batch: pa.RecordBatch) -> list[Message]:
    rows = batch.to_pylist(maps_as_pydicts="strict")
    found = []
    for row in rows:
        stored_ledger = row.pop("ledger_id")
        assert stored_ledger in (None, where.segment.ledger_id)
        entry = row.pop("entry_id") + where.segment.entry_offset
        index = row.pop("batch_index")
        message_id = MessageId(LedgerId(where.segment.ledger_id), EntryId(entry), where.partition, index)
        found.append(Message(message_id, tuple(row.items())))
    return found
