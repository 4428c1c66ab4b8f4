"""Ledgers, their segments and files, and the writes that made them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from pulsar_on_spark.metadata.records.journals import LostEntries
from pulsar_on_spark.metadata.records.record import Record


class LedgerRecord(Record):
    """A ledger in a topic's chain (the chain is the topic's ledgers by id).

    An attached ledger (`incarnation` None, written by Spark) is never open and ends at its last segment. A broker's
    ledger is open until `closed`, or until its incarnation is CLOSED. `entries` is how many a closed one has in all,
    sealed or not; None where that is not known (yet). `lost` are entries that were in frames which an operator gave up:
    readers report them as lost.
    """

    kind: ClassVar[str] = "ledger"
    topic_id: str
    ledger_id: int
    incarnation: str | None = None
    closed: bool = False
    entries: int | None = None
    lost: tuple[LostEntries, ...] = ()
    created_at: datetime

    @property
    def record_id(self) -> str:
        """By topic, in the order of the chain."""
        return f"{self.topic_id}/{self.ledger_id:020d}"


class FileRecord(Record):
    """A sealed segment file and where its copies are.

    The checksum ranges tile the whole file: one for magic and schema, one a record batch, one for the footer. Up to
    16 batches they stand here; above that in a sidecar file beside each copy, whose length and CRC32C stand here.
    `write_quorum` is how many copies there shall be; 0 for the root's. Repair alone changes `copies`, under the key of
    files.
    """

    kind: ClassVar[str] = "file"
    file_id: str
    write_id: str
    copies: tuple[int, ...]
    write_quorum: int = 0
    length: int
    batches: int
    tile_lengths: tuple[int, ...] = ()
    tile_crcs: tuple[int, ...] = ()
    sidecar_length: int = 0
    sidecar_crc: int = 0
    replaced_at: datetime | None = None

    @property
    def record_id(self) -> str:
        """The file's id."""
        return self.file_id

    def missing_copies(self, write_quorum: int, holding: Collection[int]) -> int:
        """The number of copies that it lacks to its write quorum.

        Args:
            write_quorum: The root's, for a file that does not say its own.
            holding: Ids of the paths whose copies count.
        """
        return max((self.write_quorum or write_quorum) - sum(path_id in holding for path_id in self.copies), 0)


class SegmentRecord(Record):
    """Entries [first_entry, first_entry + entries) of a ledger, in batches of a file.

    The batches are [first_batch, ...) and wholly the segment's, unless `places` says otherwise: there stand, for each
    batch, its number (rising) and the first of the segment's adjacent rows in it (docs/adr/0008). `batch_entries`
    counts the entries of each batch; an entry never spans two. `entry_offset` is added to the file's `entry_id` column
    to get entry ids (the first entry for files that Spark wrote, 0 for files written when ids were known).
    `entry_rows` is the run-length list [[entries, messages of each], ...] in entry order. `bytes` counts key and value
    bytes. Publish times are milliseconds since 1970.
    """

    kind: ClassVar[str] = "segment"
    topic_id: str
    ledger_id: int
    first_entry: int
    entries: int
    rows: int
    bytes: int
    file_id: str
    first_batch: int
    batch_entries: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()
    entry_rows: tuple[tuple[int, int], ...]
    entry_offset: int
    publish_min_ms: int
    publish_max_ms: int

    @property
    def record_id(self) -> str:
        """By topic, in the order of entries."""
        return f"{self.topic_id}/{self.ledger_id:020d}/{self.first_entry:020d}"


class WriteRecord(Record):
    """The verdict on a write id: committed with its data, or aborted by garbage collection. Never both.

    `decided_at` is the committer's clock, by which verdicts that are no longer needed are cleared away. `is_sole` says
    that nothing else would show a suspended committer that its write is done: it has no transaction.
    """

    kind: ClassVar[str] = "write"
    write_id: str
    status: Literal["committed", "aborted"]
    decided_at: datetime | None = None
    is_sole: bool = False

    @property
    def record_id(self) -> str:
        """The write's id."""
        return self.write_id


class WriterRecord(Record):
    """The last transaction of a writer, that is of a streaming query, or of a `txnAppId` and its target.

    Committed together with the transaction. A replay must bring the same again, or it is another transaction under an
    old version.

    Attributes:
        writer: The writer's compare-and-set key.
        version: The key's version: batch id, or `txnVersion`.
        rows: Messages of that transaction.
        digest: Digest of its number of messages by topic (`topic.data_path.transactions`).
        offsets: Digest of the offsets that the sources of a query's batch were planned with; None where they were not
            known: no local checkpoint, no query, an older program.
    """

    kind: ClassVar[str] = "writer"
    writer: str
    version: int
    rows: int
    digest: str
    offsets: str | None = None

    @property
    def record_id(self) -> str:
        """The writer's key."""
        return self.writer


class CompactedFile(BaseModel):
    """A file of a topic's compacted ledger.

    Attributes:
        file_id: The segment file.
        batches: Of each of its batches, from number 0 on: ledger, first entry, last entry, messages. A batch is of one
            ledger; between its first and its last entry some are missing.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    file_id: str
    batches: tuple[tuple[int, int, int, int], ...]


class CompactionRecord(Record):
    """A topic's compacted ledger: of all messages before the horizon those that are the newest of their keys.

    Committed under the topic's key. The batch behind the last one of the last file is the index: a row a ledger, whose
    `raw` is the bitmap of its entries that are left.

    Attributes:
        topic_id: The topic, or partition.
        compaction_id: Of the run that made it.
        horizon_ledger: With `horizon_entry` the first position that is not compacted: from there on the log counts.
        horizon_entry: See there.
        files: In the order of entries; none if nothing is left.
        entries: How many are left, in whole or in part.
        rows: Messages that are left.
        bytes: Their key and value bytes.
        last_batch_index: Of the last message that is left, -1 where it is in no batch or there is none.
        compacted_at: When it was committed, on the compactor's clock.
    """

    kind: ClassVar[str] = "compaction"
    topic_id: str
    compaction_id: str
    horizon_ledger: int
    horizon_entry: int
    files: tuple[CompactedFile, ...] = ()
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    last_batch_index: int = -1
    compacted_at: datetime

    @property
    def record_id(self) -> str:
        """One for each topic."""
        return self.topic_id
