"""Ledgers, their segments and files, and the writes that made them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from pulsar_on_spark.metadata.records.journals import LostEntries
from pulsar_on_spark.metadata.records.record import Record
from pulsar_on_spark.model.ids import FileId, SegmentName


class LedgerRecord(Record):
    """A ledger in a topic's chain, which is the topic's ledgers in the order of their ids.

    An attached ledger (written by Spark; `incarnation` is None) is never open and ends with its last segment. A
    broker's ledger is open until `closed` is set or its incarnation is CLOSED. `entries` is the number of entries of a
    closed ledger, sealed or not; None while it is unknown. `lost` are the entries in frames that an operator gave up;
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
        """Topic id and ledger id, which sort in the order of the chain."""
        return f"{self.topic_id}/{self.ledger_id:020d}"


class FileRecord(Record):
    """A sealed segment file and the storage paths of its copies.

    The checksum ranges (tiles) cover the whole file: one for magic and schema, one for each record batch, one for the
    footer. This record has the tiles of a file with up to 16 batches. With more batches, the tiles are in a sidecar
    file beside each copy, and this record has the sidecar's length and CRC32C.

    `copies` are the ids of the storage paths with a copy. `generations` has the generation in each copy's name, ""
    for a copy that the file's writer made; it is empty if the writer made all copies (docs/adr/0021). Only repair and
    offload change `copies` and `generations`, under the key `keys.FILES`. `write_quorum` is the wanted number of copies
    on paths that are not cold; 0 means the root's write quorum. `replaced_at` is the time since which no topic names
    the file; None for a file in use. `offloaded_at` is the time at which a copy on a cold path was named; None for a
    file that was not offloaded. From then on, one such copy is wanted, only such copies count, and the other copies are
    deleted after the topics' deletion lag.
    """

    kind: ClassVar[str] = "file"
    file_id: str
    write_id: str
    copies: tuple[int, ...]
    generations: tuple[str, ...] = ()
    write_quorum: int = 0
    length: int
    batches: int
    tile_lengths: tuple[int, ...] = ()
    tile_crcs: tuple[int, ...] = ()
    sidecar_length: int = 0
    sidecar_crc: int = 0
    replaced_at: datetime | None = None
    offloaded_at: datetime | None = None

    @property
    def record_id(self) -> str:
        """The file's id."""
        return self.file_id

    @property
    def is_cold(self) -> bool:
        """True if the file was offloaded, so that its copies belong on cold paths."""
        return self.offloaded_at is not None

    def as_cold(self, offloaded_at: datetime) -> FileRecord:
        """Return the record with the file offloaded at this time, and the same copies."""
        return self.model_copy(update={"offloaded_at": offloaded_at})

    def as_restored(self) -> FileRecord:
        """Return the record for a restored root, in which no file is offloaded or replaced."""
        return self.model_copy(update={"offloaded_at": None, "replaced_at": None})

    @property
    def names(self) -> dict[int, SegmentName]:
        """The name of each copy, by storage path."""
        generations = self.generations or ("",) * len(self.copies)
        return {
            path_id: SegmentName(FileId(self.file_id), generation)
            for path_id, generation in zip(self.copies, generations, strict=True)
        }

    def with_names(self, names: Mapping[int, SegmentName]) -> FileRecord:
        """Return the record with other copies, given as names by storage path, in the order in which to read them."""
        generations = tuple(name.generation for name in names.values())
        return self.model_copy(update={"copies": tuple(names), "generations": generations if any(generations) else ()})

    def missing_copies(self, write_quorum: int, holding: Collection[int]) -> int:
        """Return the number of copies that the file lacks to have its write quorum.

        Args:
            write_quorum: The root's write quorum, for a file without a quorum of its own.
            holding: Ids of the storage paths whose copies count.
        """
        wanted = 1 if self.is_cold else self.write_quorum or write_quorum
        return max(wanted - sum(path_id in holding for path_id in self.copies), 0)


class SegmentRecord(Record):
    """Entries [first_entry, first_entry + entries) of a ledger, in batches of a file.

    Without `places`, the batches are the file's batches from `first_batch` on, and have no rows of other segments. With
    `places`, the segment shares batches with other segments: `places` lists, for each batch, its number (ascending) and
    the first of the segment's adjacent rows in the batch (docs/adr/0008). `batch_entries` has the number of entries in
    each batch; an entry is never in two batches. An entry id is `entry_offset` plus the value in the file's column
    `entry_id`. The offset is the first entry for files that Spark wrote, and 0 for files that were written with known
    ids. `entry_rows` is the run-length list [[entries, messages of each], ...] in the order of entries. `bytes` is the
    number of key and value bytes. Publish times are milliseconds since 1970.
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
        """Topic id, ledger id and first entry, which sort in the order of entries."""
        return f"{self.topic_id}/{self.ledger_id:020d}/{self.first_entry:020d}"


class WriteRecord(Record):
    """The outcome of a write id: committed with its data, or aborted by garbage collection. Never both.

    `decided_at` is the time of the decision on the committer's clock, by which old records are deleted; None in records
    that older programs wrote. `is_sole` is True for a write without a transaction (query or `txnAppId`): after a
    suspension, its committer can find out only by this record if the write was committed.
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
    """The last transaction of a writer, which is a streaming query, or a `txnAppId` with its target.

    The record is committed together with the transaction. A replay of this version must have the same content.
    Otherwise it is another transaction that uses the version again.

    Attributes:
        writer: The writer's compare-and-set key.
        version: The key's version: batch id, or `txnVersion`.
        rows: Number of messages of the transaction.
        digest: Digest of the transaction's numbers of messages by topic (`topic.data_path.transactions`).
        offsets: Digest of the planned source offsets of a query's batch; None if they are unknown, because the writer
            is no query, the query's checkpoint is not local, or an older program wrote the record.
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
        batches: For each batch, from number 0 on: (ledger, first entry, last entry, number of messages). A batch has
            entries of one ledger, but not necessarily all entries between the first and the last entry.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    file_id: str
    batches: tuple[tuple[int, int, int, int], ...]


class CompactionRecord(Record):
    """A topic's compacted ledger: the newest message of each key before the horizon.

    The record is committed under the topic's key. In the last file, the batch after the last of `batches` is the index:
    it has one row for each ledger, in whose column `raw` is the bitmap of the remaining entries.

    Attributes:
        topic_id: The topic, or partition.
        compaction_id: Id of the compaction run.
        horizon_ledger: With `horizon_entry`, the first position that is not compacted; readers read the topic's own
            ledgers from there on.
        horizon_entry: The entry of that position.
        files: Files in the order of entries; none if no message remains.
        entries: Number of entries of which at least one message remains.
        rows: Number of remaining messages.
        bytes: Key and value bytes of the remaining messages.
        last_batch_index: Batch index of the last remaining message; -1 if it is not in a batch, or no message remains.
        compacted_at: Time of the commit on the compactor's clock.
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
        """The topic's id: a topic has at most one compaction record."""
        return self.topic_id
