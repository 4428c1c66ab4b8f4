"""The second pass of a compaction: the rows at the kept places, with all that rebuilds their entries. Pure.

An entry keeps its id, and its messages keep their batch indexes. Only the rows of a batch's kept messages are stored.
The first of these rows has the `entry_metadata`, which includes the original number of messages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.ledger.segments.segment_format import SEGMENT_SCHEMA
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.protocol.field_walk import Bools, Int64s
from pulsar_on_spark.topic.entries.rebuild import derived_metadata
from pulsar_on_spark.topic.maintenance.compaction.places import Places, is_place, next_entry


class Kept(NamedTuple):
    """Rows in `SEGMENT_SCHEMA` with ledger and entry ids, and the distinct ids of their entries."""

    rows: pa.RecordBatch
    entries: Int64s


def kept_rows(
    ledger: LedgerId,
    entry_offset: int,
    rows: pa.RecordBatch,
    survivors: Int64s,
    places: Places,
    *,
    retain_null_key: bool = False,
) -> Kept | None:
    """Return the rows that compaction keeps; None if it keeps none.

    Args:
        ledger: The ledger of the rows.
        entry_offset: Added to the column `entry_id` to get entry ids.
        rows: Rows in `SEGMENT_SCHEMA`: all rows of each entry.
        survivors: The kept places, from the first pass.
        places: The places of all entries.
        retain_null_key: True to keep messages without a key.
    """
    entries = rows.column("entry_id").to_numpy() + entry_offset
    indexes = rows.column("batch_index").fill_null(-1).to_numpy().astype(np.int64)
    raw = rows.column("raw")
    kept = is_place(places.of_messages(ledger, entries, indexes), survivors)
    if raw.null_count < len(raw):
        kept |= _kept_wholes(places.of_entries(ledger, entries), raw, survivors)
    # An entry that the first pass saw whole may be split by now, if it was sealed meanwhile: keep all of its rows.
    kept |= (indexes >= 0) & is_place(places.of_entries(ledger, entries), survivors)
    if retain_null_key:
        kept |= pc.and_(rows.column("key").is_null(), raw.is_null()).to_numpy(zero_copy_only=False)
    if not kept.any():
        return None
    first_rows = np.flatnonzero(np.concatenate(([True], entries[1:] != entries[:-1])))
    chosen = np.flatnonzero(kept)
    is_first = np.concatenate(([True], entries[chosen][1:] != entries[chosen][:-1]))
    columns = rows.take(pa.array(chosen)).columns
    columns[0] = pa.array(np.full(len(chosen), ledger, np.int64))
    columns[1] = pa.array(entries[chosen])
    at = SEGMENT_SCHEMA.get_field_index("entry_metadata")
    columns[at] = _entry_metadata(rows, first_rows, kept, chosen, is_first)
    return Kept(pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA), entries[chosen][is_first])


def _kept_wholes(entry_places: Int64s, raw: pa.BinaryArray, survivors: Int64s) -> Bools:
    """Return a flag for each entry: True if it is not split but has a kept message.

    The entry may have been split in the first pass.
    """
    is_whole = pc.greater(pc.binary_length(raw).fill_null(0), 0).to_numpy(zero_copy_only=False)
    first = np.searchsorted(survivors, entry_places)
    return np.asarray(is_whole & (np.searchsorted(survivors, next_entry(entry_places)) > first))


def _entry_metadata(
    rows: pa.RecordBatch, first_rows: Int64s, kept: Bools, chosen: Int64s, is_first: Bools
) -> pa.BinaryArray:
    """Return the column `entry_metadata`, with each entry's metadata in the first of its kept rows.

    An entry that Spark wrote has no stored metadata. If only some of its rows are kept, its metadata is derived here
    from all of its rows, because later readers do not have the dropped rows.
    """
    stored = rows.column("entry_metadata")
    entry_of_row = np.cumsum(np.isin(np.arange(rows.num_rows), first_rows)) - 1
    first_of_chosen = first_rows[entry_of_row[chosen]]
    found = stored.take(pa.array(first_of_chosen, mask=~is_first))
    unnamed = pc.and_(stored.is_null(), rows.column("raw").is_null()).to_numpy(zero_copy_only=False)
    if not unnamed[first_of_chosen].any():
        return found
    ends = np.append(first_rows[1:], rows.num_rows)
    left = np.add.reduceat(kept.astype(np.int64), first_rows)
    is_cut = (left > 0) & (left < ends - first_rows) & unnamed[first_rows]
    if not is_cut.any():
        return found
    values = found.to_pylist()
    for row in np.flatnonzero(is_first & is_cut[entry_of_row[chosen]]).tolist():
        entry = int(entry_of_row[chosen[row]])
        first = int(first_rows[entry])
        values[row] = derived_metadata(rows.slice(first, int(ends[entry]) - first))
    return pa.array(values, pa.binary())
