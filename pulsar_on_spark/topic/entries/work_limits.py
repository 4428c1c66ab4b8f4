"""Limits for splitting entries into rows. Entries above them stay whole, because a few bytes can expand to any size.

| limit | entries above it |
|---|---|
| `MAX_MESSAGES_IN_ENTRY`, `MAX_UNCOMPRESSED_BYTES` | stay whole for all readers |
| `GROUP_DENSE_BYTES` of dense entries in 4 MiB | stay whole in segments; readers split them one by one |

An entry is *dense* if its rows take more than `DENSE_TIMES` the bytes of its stored payload. A client's batch is dense
if its messages repeat each other. Without the second limit, a producer that sends 10 MB of dense entries a second would
cause minutes of work for the sealing process each second, while all topics wait for that process.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pulsar_on_spark.protocol.compression import MAX_UNCOMPRESSED_BYTES
from pulsar_on_spark.protocol.entry_frame import MAX_MESSAGES_IN_ENTRY
from pulsar_on_spark.protocol.field_walk import Bools, Int64s
from pulsar_on_spark.topic.entries.cutting import RECORD_BATCH_BYTES

ROW_BYTES: Final = 64
"""The work for a row without its value, expressed in bytes of values: about 6 us."""
DENSE_TIMES: Final = 32
GROUP_DENSE_BYTES: Final = 32 << 20
"""Limit for the work of dense entries in each `RECORD_BATCH_BYTES` of a group, in bytes of values (see `ROW_BYTES`).

So a group of 1 MiB has at most a million rows, which take some seconds.
"""


def above_limits(messages: Int64s, uncompressed_bytes: Int64s) -> Bools:
    """Return a flag for each entry: True if it is above the limits at which no reader splits it.

    Args:
        messages: The number of messages that each entry's metadata claims; it may be any number.
        uncompressed_bytes: The size that each entry's metadata claims; 0 if it is not compressed.
    """
    return (messages > MAX_MESSAGES_IN_ENTRY) | (uncompressed_bytes > MAX_UNCOMPRESSED_BYTES)


def above_group_budget(messages: Int64s, uncompressed_bytes: Int64s, stored_bytes: Int64s) -> Bools:
    """Return a flag for each entry of a group: True if it is dense and exceeds the group's budget of work.

    Args:
        messages: The number of messages of each entry that may be split; 0 for other entries.
        uncompressed_bytes: The uncompressed size of each payload; 0 for other entries and uncompressed payloads.
        stored_bytes: The size of each payload as received.
    """
    work = uncompressed_bytes + ROW_BYTES * messages
    is_dense = work > DENSE_TIMES * np.maximum(stored_bytes, 1)
    budget = GROUP_DENSE_BYTES * max(1, round(int(stored_bytes.sum()) / RECORD_BATCH_BYTES))
    return is_dense & (np.cumsum(np.where(is_dense, work, 0)) > budget)
