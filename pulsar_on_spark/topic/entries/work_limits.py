"""The limits of unpacking entries into rows: above them entries stay whole, as a few bytes can expand to any size.

| limit | entries above it |
|---|---|
| `MAX_MESSAGES_IN_ENTRY`, `MAX_UNCOMPRESSED_BYTES` | stay whole wherever they are read |
| `GROUP_DENSE_BYTES` of a group's dense entries | stay whole in segments; readers take them apart one by one |

An entry is *dense* where its rows take more than `DENSE_TIMES` the bytes that are stored of it. Batches that clients
make are dense where their messages repeat each other. Without the second limit a producer that sends 10 MB a second
of dense entries would cost a sealing process minutes a second, and all topics wait for that process.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.protocol.field_walk import Bools, Int64s

ROW_BYTES: Final = 64
"""The work of a row beside its value, in bytes of values: about 6 us."""
DENSE_TIMES: Final = 32
GROUP_DENSE_BYTES: Final = 32 << 20
"""Limit of a group's dense entries; with others, a group of 1 MiB has at most a million rows, some seconds of work."""


def above_limits(messages: Int64s, uncompressed_bytes: Int64s) -> Bools:
    """True for entries that no reader takes apart.

    Args:
        messages: The number of messages that each entry's metadata claims; any number.
        uncompressed_bytes: The size that each entry's metadata claims; 0 if it is not compressed.
    """
    return (messages > MAX_MESSAGES_IN_ENTRY) | (uncompressed_bytes > MAX_UNCOMPRESSED_BYTES)


def above_group_budget(messages: Int64s, uncompressed_bytes: Int64s, stored_bytes: Int64s) -> Bools:
    """True for the dense entries of a group that are beyond what the group may cost.

    Args:
        messages: Messages of each entry that may be unpacked, 0 for the others.
        uncompressed_bytes: Uncompressed size of each payload; 0 for the others, and if it is not compressed.
        stored_bytes: Size of each payload as received.
    """
    work = uncompressed_bytes + ROW_BYTES * messages
    is_dense = work > DENSE_TIMES * np.maximum(stored_bytes, 1)
    return is_dense & (np.cumsum(np.where(is_dense, work, 0)) > GROUP_DENSE_BYTES)
