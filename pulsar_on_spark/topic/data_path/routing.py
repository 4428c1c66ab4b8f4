"""Which partition of a topic a row goes to, and the rows of a batch laid out by partition.

Rows with a key go where Pulsar's Java client sends them: `hash(key string) % partitions`, with the hash of the option
`hashingScheme`. Rows without a key go round robin, in runs rather than one by one, so that they can be handed on as
slices of the batch, without copying values.
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
"""So many rows without a key at most go to one partition before the next one has its turn."""

Partitions = npt.NDArray[np.int32]


class HashingScheme(Enum):
    """The clients' `hashingScheme`; JavaStringHash is the default of Pulsar's Java client."""

    JAVA_STRING_HASH = "JavaStringHash"
    MURMUR3_32_HASH = "Murmur3_32Hash"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Where the rows without a key go on: the partition in turn, and how many rows its run has had.

    A task starts with another `partition` than its neighbours (its task number), else small batches all meet in
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
    """The partition of each row, and the state for the task's next batch.

    Args:
        keys: The column `key`; None if no row has one.
        n_rows: Rows of the batch.
        partitions: Of the topic; 1 for a topic that is not partitioned.
        scheme: How keys are hashed.
        state: From the task's previous batch.
        key_b64: Which keys Pulsar's clients carry as Base64, and thus hash as that text.
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
    """The batch's rows by partition; rows of one partition keep their order.

    Rows that lie in runs come out as slices of the batch (a partition may have several). Else the rows are copied once
    into the order of partitions.

    Args:
        batch: Any columns.
        partitions: From `route`.
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
    """Round robin in runs of min(1000, rows / partitions): a small batch still spreads over all partitions."""
    if n_rows == 0:
        return np.zeros(0, np.int32), state
    run = min(RUN_ROWS, -(-n_rows // partitions))
    had = min(state.rows, run)
    turns = (np.arange(had, had + n_rows) // run + state.partition) % partitions
    after = had + n_rows
    return turns.astype(np.int32), RoundRobin((state.partition + after // run) % partitions, after % run)


def _slices(
    batch: pa.RecordBatch, partitions: Partitions, starts: npt.NDArray[np.int64]
) -> list[tuple[int, pa.RecordBatch]]:
    bounds = starts.tolist()
    return [(int(partitions[first]), batch.slice(first, last - first)) for first, last in pairwise(bounds)]
