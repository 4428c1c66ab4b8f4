"""Routing of rows to a topic's partitions, and the split of a batch by partition.

Rows with a key are routed like Pulsar's Java client routes messages: `hash(key string) % partitions`, with the hash of
the option `hashingScheme`. Rows without a key are routed round robin in runs, not one by one, so that the rows of a
partition are slices of the batch and no values are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_on_spark.model.hashing import KeyArray, java_string_hash, key_strings, murmur3_32

RUN_ROWS = 1_000
"""Largest number of consecutive rows without a key that are routed to one partition."""

Partitions = npt.NDArray[np.int32]


class HashingScheme(Enum):
    """The clients' `hashingScheme`; JavaStringHash is the default of Pulsar's Java client."""

    JAVA_STRING_HASH = "JavaStringHash"
    MURMUR3_32_HASH = "Murmur3_32Hash"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """State of the round robin: the current partition, and the number of rows in its run so far.

    Each task starts with a `partition` of its own (its task number); otherwise all small batches would be routed to
    partition 0.
    """

    partition: int = 0
    rows: int = 0


def route(
    keys: KeyArray | None,
    n_rows: int,
    partitions: int,
    scheme: HashingScheme,
    state: RoundRobin,
    key_b64: pa.BooleanArray | None = None,
) -> tuple[Partitions, RoundRobin]:
    """Choose the partition of each row; return also the state for the task's next batch.

    Args:
        keys: The column `key`; None if no row has a key.
        n_rows: The number of rows in the batch.
        partitions: Number of the topic's partitions; 1 for a topic that is not partitioned.
        scheme: The hash for keys.
        state: The state after the task's previous batch.
        key_b64: Mask of the keys that Pulsar's clients encode as Base64; the encoded text is hashed.
    """
    if partitions == 1:
        return np.zeros(n_rows, np.int32), state
    if keys is None or keys.null_count == n_rows:
        return _in_runs(n_rows, partitions, state)
    hash_of = java_string_hash if scheme is HashingScheme.JAVA_STRING_HASH else murmur3_32
    chosen = (hash_of(key_strings(keys, key_b64)) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        keyless = keys.is_null().to_numpy(zero_copy_only=False)
        chosen[keyless], state = _in_runs(keys.null_count, partitions, state)
    return chosen, state


def split_rows(batch: pa.RecordBatch, partitions: Partitions) -> list[tuple[int, pa.RecordBatch]]:
    """Split the batch's rows by partition, as (partition, rows); rows of one partition keep their order.

    Rows in long runs are returned as slices of the batch, of which a partition may have several. Otherwise the rows are
    copied once, in the order of partitions.

    Args:
        batch: The rows, in any columns.
        partitions: The result of `route`.
    """
    if len(partitions) == 0:
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(partitions)) + 1, [len(partitions)]))
    if len(starts) - 1 <= max(2 * len(np.unique(partitions)), len(partitions) // RUN_ROWS + 1):
        return _slices(batch, partitions, starts)
    order = np.argsort(partitions.astype(np.uint16) if int(partitions.max()) <= 0xFFFF else partitions, kind="stable")
    ordered = partitions[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1, [len(ordered)]))
    return _slices(batch.take(pa.array(order)), ordered, starts)


def _in_runs(n_rows: int, partitions: int, state: RoundRobin) -> tuple[Partitions, RoundRobin]:
    """Route round robin in runs of min(1000, rows / partitions), so that small batches use all partitions, too."""
    if n_rows == 0:
        return np.zeros(0, np.int32), state
    run = min(RUN_ROWS, -(-n_rows // partitions))
    rows_in_run = min(state.rows, run)
    turns = (np.arange(rows_in_run, rows_in_run + n_rows) // run + state.partition) % partitions
    after = rows_in_run + n_rows
    return turns.astype(np.int32), RoundRobin((state.partition + after // run) % partitions, after % run)


def _slices(
    batch: pa.RecordBatch, partitions: Partitions, starts: npt.NDArray[np.int64]
) -> list[tuple[int, pa.RecordBatch]]:
    bounds = starts.tolist()
    return [(int(partitions[first]), batch.slice(first, last - first)) for first, last in pairwise(bounds)]
