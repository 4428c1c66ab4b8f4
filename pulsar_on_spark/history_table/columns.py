"""The columns of history tables, and their construction from the record batches of segments.

A table has the columns of the values, and a column for each part of a message that cannot be derived from other
columns. Columns have the names and meanings of the columns of `format("pulsarpy")`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pulsar_on_spark.topic.entries.message_columns import (
    MICROSECONDS,
    properties_of,
    schema_versions_of,
    times_of,
)

VALUE: Final = "value"
SYSTEM: Final = pa.schema(
    [
        ("__partition", pa.int32()),
        ("__ledgerId", pa.int64()),
        ("__entryId", pa.int64()),
        ("__batchIndex", pa.int32()),
        ("__key", pa.binary()),
        ("__publishTime", MICROSECONDS),
        ("__eventTime", MICROSECONDS),
        ("__messageProperties", pa.map_(pa.string(), pa.string())),
        ("__producerName", pa.string()),
        ("__sequenceId", pa.int64()),
        ("__schemaVersion", pa.int64()),
        ("__orderingKey", pa.binary()),
        ("__deliverAtTime", MICROSECONDS),
    ]
)
"""The columns that every history table has, after the columns of the values."""
SEGMENT_COLUMNS: Final = (
    "entry_id",
    "batch_index",
    "key",
    "publish_time",
    "event_time",
    "properties",
    "producer_name",
    "sequence_id",
    "schema_version",
    "ordering_key",
    "deliver_at_time",
)
"""The columns of segments that `system_columns` needs."""


def system_columns(batch: pa.RecordBatch, partition: int, ledger: int, entry_offset: int) -> list[pa.Array]:
    """Return the arrays for the columns of `SYSTEM`, in their order.

    Args:
        batch: Messages, with the columns `SEGMENT_COLUMNS`.
        partition: The partition's index; -1 for a topic without partitions.
        ledger: The ledger of all rows.
        entry_offset: The number to add to the column `entry_id` to get entry ids.
    """
    count = batch.num_rows
    arrays = {
        "__partition": pa.repeat(pa.scalar(partition if partition >= 0 else None, pa.int32()), count),
        "__ledgerId": pa.repeat(pa.scalar(ledger, pa.int64()), count),
        "__entryId": pa.array(batch.column("entry_id").to_numpy() + entry_offset),
        "__batchIndex": batch.column("batch_index"),
        "__key": batch.column("key"),
        "__publishTime": times_of(batch.column("publish_time")),
        "__eventTime": times_of(batch.column("event_time")),
        "__messageProperties": properties_of(batch.column("properties")),
        "__producerName": batch.column("producer_name"),
        "__sequenceId": batch.column("sequence_id"),
        "__schemaVersion": schema_versions_of(batch.column("schema_version")),
        "__orderingKey": batch.column("ordering_key"),
        "__deliverAtTime": times_of(batch.column("deliver_at_time")),
    }
    return [arrays[field.name] for field in SYSTEM]
