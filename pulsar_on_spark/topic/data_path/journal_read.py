"""Reading of entries that are in a journal and not sealed yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from pulsar_on_spark.ledger.journal.frame_reader import FrameReader, JournalPlace
from pulsar_on_spark.ledger.journal.frames import payload_views
from pulsar_on_spark.ledger.journal.places import JournalPathTable
from pulsar_on_spark.model.errors import CorruptJournalError
from pulsar_on_spark.model.ids import EntryId, LedgerId
from pulsar_on_spark.storage.files import OS_FILES, FileOps
from pulsar_on_spark.topic.entries.rows import DecodedEntries, StoredEntry, decode_entries


def read_entries(
    where: JournalPlace,
    ledger: LedgerId,
    first: int,
    end: int,
    paths: JournalPathTable,
    files: FileOps = OS_FILES,
) -> Iterator[DecodedEntries]:
    """Read the rows of entries [first, end) of a ledger, in batches of whole entries.

    Args:
        where: The journal's frames that have the entries, and their files.
        ledger: The ledger.
        first: The first entry.
        end: The id after the last entry.
        paths: Returns the root's storage paths.
        files: The file operations of the operating system.

    Raises:
        JournalGoneError, CopiesUnreachableError, CorruptJournalError, FormatVersionError: as `FrameReader.read`.
    """
    return decode_entries(stored_entries(where, ledger, first, end, paths, files))


def stored_entries(
    where: JournalPlace,
    ledger: LedgerId,
    first: int,
    end: int,
    paths: JournalPathTable,
    files: FileOps = OS_FILES,
) -> Iterator[StoredEntry]:
    """Read entries [first, end) of a ledger, each as the broker received it (see `read_entries`)."""
    position = first
    with closing(FrameReader(where, paths, files)) as frames:
        for number in where.frames:
            batch = frames.read(number, ledger)
            first_entry = batch.column("entry_id")[0].as_py()
            payloads = payload_views(batch)[max(position - first_entry, 0) : max(end - first_entry, 0)]
            if not payloads:
                continue
            if first_entry > position:
                raise CorruptJournalError(
                    f"Frame {number} of the journal of incarnation {where.incarnation} begins after entry "
                    f"{ledger}:{position}, which it should have: report this as a defect."
                )
            for entry, payload in enumerate(payloads, position):
                yield StoredEntry(ledger, EntryId(entry), bytes(payload))
            position += len(payloads)
    if position < end:
        raise CorruptJournalError(
            f"The frames of the journal of incarnation {where.incarnation} end before position {ledger}:{end}: report "
            "this as a defect."
        )
