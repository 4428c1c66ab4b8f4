"""The `cursors` table: its columns, the encoding of its rows, and the order of a slot's rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from pulsar_on_spark.metadata.cursors import CursorRow
from pulsar_on_spark.metadata.log import folding

CURSORS_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("ack_holes", pa.binary()),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The cursors table: (ledger_id, entry_id) is the next entry to read; a slot's largest (epoch, n) counts."""

CURSORS_ORDER = folding.Order(key=("topic_id", "subscription", "slot"), rank=("epoch", "n", "seq"))
"""The record key of a cursor row, and the rank by which the newest row of a key is found."""


def encode_cursors(rows: Sequence[CursorRow], seq: int, token: str) -> pa.Table:
    """Encode the rows of the commit with this token; `seq` is the version that its writer read, plus 1."""
    now = datetime.now(UTC)
    return pa.Table.from_pylist(
        [
            {
                "topic_id": row.topic_id,
                "subscription": row.subscription,
                "slot": row.slot,
                "epoch": row.epoch,
                "n": row.n,
                "ledger_id": row.ledger,
                "entry_id": row.entry,
                "ack_holes": row.ack_holes,
                "seq": seq,
                "token": token,
                "committed_at": now,
            }
            for row in rows
        ],
        schema=CURSORS_SCHEMA,
    )


def decode_cursors(table: pa.Table) -> list[CursorRow]:
    """Decode the rows of a data file."""
    names = ("topic_id", "subscription", "slot", "epoch", "n", "ledger_id", "entry_id", "ack_holes")
    return [CursorRow(*values) for values in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
