"""The messages of compacted slices as rows. Lost messages are an error, or are skipped and logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from pulsar_on_spark.model.errors import CorruptSegmentError, DataLossError, SegmentGoneError
from pulsar_on_spark.model.ids import EntryId, LedgerId, PathId, Position
from pulsar_on_spark.storage.root_place import RootPlace
from pulsar_on_spark.storage.storage_path import StoragePath
from pulsar_on_spark.topic.catalog.present_copies import report_present
from pulsar_on_spark.topic.catalog.root_handle import RootHandle
from pulsar_on_spark.topic.entries.hidden_rows import HIDING_COLUMNS, UnreadableEntry, leave_out, message_rows_of
from pulsar_on_spark.topic.maintenance.compaction.reading import CompactedSlice

log = logging.getLogger(__name__)

_ALLOW = "to read on without them, set option failOnDataLoss to false."


@dataclass(frozen=True, slots=True)
class CompactedReader:
    """Reader of compacted slices of one root. Picklable.

    Attributes:
        root: The root's folder or URL, for reports.
        paths: The storage paths.
        columns: Columns of `SEGMENT_SCHEMA` to decode.
        fail_on_data_loss: True if a loss is an error; False to skip and log lost messages.
    """

    root: RootPlace
    paths: Mapping[PathId, StoragePath]
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True

    def read(self, slice_: CompactedSlice) -> Iterator[tuple[LedgerId, pa.RecordBatch]]:
        """Yield the slice's messages in order, as (ledger, batch), with entry ids in the column `entry_id`.

        Raises:
            DataLossError: a batch of the slice has no good copy, and `fail_on_data_loss` is set; or the compacted
                ledger was replaced so long ago that its files were deleted.
            CopiesUnreachableError: a batch of the slice has no copy that can be read now.
            UnreadableMessageError: a message cannot be converted to rows, and `fail_on_data_loss` is set.
        """
        columns = tuple(dict.fromkeys((*self.columns, *HIDING_COLUMNS)))
        report = partial(report_present, partial(RootHandle.shared, self.root))
        number, alone = slice_.first, False
        while number < slice_.end:
            end = number + 1 if alone else slice_.end
            try:
                for ledger, batch in slice_.part(number, end).read(lambda: self.paths, columns, report):
                    number += 1
                    for messages in self._messages(slice_, ledger, batch):
                        yield ledger, messages
                alone = False
            except SegmentGoneError as error:
                raise DataLossError(
                    f"The compacted ledger of {slice_.topic} was replaced more than ten minutes ago, and its files "
                    f"were deleted while they were read: read the topic again from the beginning. {error}"
                ) from error
            except CorruptSegmentError as error:
                # The error concerns a group of batches. A batch is lost only if it cannot be read alone either.
                if alone:
                    rows = slice_.compacted.batches[number][3]
                    self._lose(f"{rows} compacted messages of {slice_.topic}", str(error))
                    number += 1
                alone = not alone

    def _messages(self, slice_: CompactedSlice, ledger: LedgerId, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        def on_unreadable(unreadable: UnreadableEntry) -> None:
            position = Position(ledger, EntryId(unreadable.entry_id))
            leave_out(position, slice_.topic, unreadable.reason, is_error=self.fail_on_data_loss)

        wanted = [name for name in batch.schema.names if name in self.columns]
        for messages in message_rows_of(batch, ledger, on_unreadable):
            yield messages.select(wanted)

    def _lose(self, what: str, reason: str) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(f"{what} are lost: {reason} Compact the topic again or, {_ALLOW}")
        log.warning("Skipped %s: %s", what, reason)
