"""The messages of compacted slices, for readers that see rows: with losses as errors, or as logged skips."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from pulsar_on_spark.ledger.reports import report_bad_copy
from pulsar_on_spark.ledger.storage_path import StoragePath
from pulsar_on_spark.model.errors import CorruptSegmentError, DataLossError, SegmentGoneError
from pulsar_on_spark.model.ids import LedgerId, PathId
from pulsar_on_spark.topic.compaction.reading import CompactedSlice
from pulsar_on_spark.topic.entry.hidden_rows import HIDING_COLUMNS, hidden_rows

log = logging.getLogger(__name__)

_ALLOW = "to read on without them, set option failOnDataLoss to false."


@dataclass(frozen=True, slots=True)
class CompactedReader:
    """Reads compacted slices of one root. Picklable.

    Attributes:
        root: The root's path, for reports.
        paths: The storage paths.
        columns: Columns of `SEGMENT_SCHEMA`.
        fail_on_data_loss: Whether a loss is an error; if not, it is skipped and logged.
    """

    root: Path
    paths: Mapping[PathId, StoragePath]
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True

    def read(self, slice_: CompactedSlice) -> Iterator[tuple[LedgerId, pa.RecordBatch]]:
        """The slice's messages in order; entry ids need no offset.

        Raises:
            DataLossError: no copy of a part is good, or a message cannot be read, and `fail_on_data_loss` is set; or
                the compacted ledger was replaced so long ago that its files are gone.
        """
        columns = tuple(dict.fromkeys((*self.columns, *HIDING_COLUMNS)))
        report = partial(report_bad_copy, self.root)
        number = slice_.first
        while number < slice_.end:
            try:
                for ledger, batch in slice_.part(number, slice_.end).read(self.paths, columns, report):
                    number += 1
                    yield ledger, self._messages(slice_, ledger, batch)
            except SegmentGoneError as error:
                raise DataLossError(
                    f"{slice_.topic} was compacted again while its compacted messages were read, and their files are "
                    f"kept for ten minutes only: read again, in larger steps. {error}"
                ) from error
            except CorruptSegmentError as error:
                self._lose(f"{slice_.compacted.batches[number][3]} compacted messages of {slice_.topic}", str(error))
                number += 1

    def _messages(self, slice_: CompactedSlice, ledger: LedgerId, batch: pa.RecordBatch) -> pa.RecordBatch:
        hidden = hidden_rows(batch)
        if hidden is not None:
            for unreadable in hidden.unreadable:
                message = f"message {ledger}:{unreadable.entry_id} of {slice_.topic}"
                self._lose(message, f"It is {unreadable.reason}.")
            batch = batch.filter(hidden.messages)
        return batch.select([name for name in batch.schema.names if name in self.columns])

    def _lose(self, what: str, reason: str) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(f"Lost: {what}: {reason} Compact the topic again, or {_ALLOW}")
        log.warning("Skipped: %s: %s", what, reason)
