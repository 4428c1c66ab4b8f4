"""Filter of a batch's messages by the slots of a Shared or Key_Shared subscription."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_on_spark.model.hashing import murmur3_32
from pulsar_on_spark.model.ids import LedgerId
from pulsar_on_spark.topic.entries.cutting import NO_SLOT, SLOTS, row_slots, slots_of_entries
from pulsar_on_spark.topic.managed_ledger.chain.slices import SegmentSlice

KEY_COLUMNS = ("entry_id", "batch_index", "key", "ordering_key", "producer_name", "sequence_id")
"""The segment columns that determine a message's key slot."""


@dataclass(frozen=True, slots=True)
class SlotFilter:
    """Filter that drops the rows of other slots: by key for Key_Shared, by block of entries for Shared.

    For a message without a key, Key_Shared uses the sticky key that the broker uses: `<producer name>-<sequence id>` of
    the first message of its entry.
    """

    by_key: bool

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """The segment columns that `select_rows` needs."""
        if self.by_key:
            return KEY_COLUMNS
        return ("entry_id",)

    def select_rows(self, batch: pa.RecordBatch, slice_: SegmentSlice, slots: frozenset[int]) -> pa.RecordBatch:
        """Select the rows of a batch of whole entries that belong to one of `slots`."""
        slots_of_rows = key_slots(batch) if self.by_key else _block_slots(batch, slice_)
        wanted = np.zeros(NO_SLOT + 1, np.bool_)
        wanted[sorted(slots)] = True
        return batch.filter(pa.array(wanted[slots_of_rows]))


def _block_slots(batch: pa.RecordBatch, slice_: SegmentSlice) -> npt.NDArray[np.uint8]:
    entries = batch.column("entry_id").to_numpy()
    if len(entries) == 0:
        return np.zeros(0, np.uint8)
    first, last = int(entries[0]), int(entries[-1])
    ledger = LedgerId(slice_.segment.ledger_id)
    of_entry = slots_of_entries(ledger, first + slice_.segment.entry_offset, last - first + 1)
    return np.asarray(of_entry[entries - first], np.uint8)


def key_slots(batch: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    """Return the Key_Shared slot of each row of a batch of whole entries with the columns `KEY_COLUMNS`."""
    slots = row_slots(batch)
    keyless = np.ones(batch.num_rows, np.bool_) if slots is None else slots == NO_SLOT
    if not keyless.any():
        assert slots is not None
        return slots
    entries = batch.column("entry_id").to_numpy()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(entries)) + 1))
    heads = batch.select(["producer_name", "sequence_id"]).take(pa.array(starts))
    names = pc.binary_join_element_wise(
        pc.fill_null(heads.column("producer_name"), ""),
        pc.cast(pc.fill_null(heads.column("sequence_id"), 0), pa.string()),
        "-",
    )
    of_entry = (murmur3_32(names) % np.uint32(SLOTS)).astype(np.uint8)
    of_row = np.repeat(of_entry, np.diff([*starts, len(entries)]))
    return of_row if slots is None else np.where(keyless, of_row, slots)
