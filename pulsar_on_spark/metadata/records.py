"""The typed records of the main table: one class a kind, each with its record id and its compare-and-set keys.

A record is a frozen pydantic model. Fields that the table has as columns of their own (`COLUMN_FIELDS`) are stored
there, so that SQL can use them; all others are in the JSON column `body`. Fields that this version does not know
survive: models keep extras, and folding copies rows as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

COLUMN_FIELDS = ("topic_id", "ledger_id", "first_entry", "entries", "rows", "bytes", "file_id")
"""Record fields stored as typed columns of the main table (null where a kind lacks them)."""


class Record(BaseModel):
    """One current row of the main table; (`kind`, `record_id`) is its record key."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: ClassVar[str]

    @property
    def record_id(self) -> str:
        """The id within the kind; ids of one topic sort in the order of the chain."""
        raise NotImplementedError


class RootRecord(Record):
    """What the root is: written once by `init`."""

    kind: ClassVar[str] = "root"
    format_version: int
    cluster_id: str
    quorum: str

    @property
    def record_id(self) -> str:
        """There is one."""
        return "root"


class PathRecord(Record):
    """A storage path. `uri` is relative to the root for paths inside it, else absolute."""

    kind: ClassVar[str] = "path"
    path_id: int
    uri: str
    state: Literal["writable", "read-only", "draining", "lost"] = "writable"
    label: str = ""
    reason: str = ""

    @property
    def record_id(self) -> str:
        """The path's number."""
        return str(self.path_id)


class IdsRecord(Record):
    """The counter that ledger ids come from; `next_ledger_id` is the first free one."""

    kind: ClassVar[str] = "ids"
    next_ledger_id: int

    @property
    def record_id(self) -> str:
        """There is one counter."""
        return "ledger"


class TenantRecord(Record):
    """A tenant; created with its first namespace."""

    kind: ClassVar[str] = "tenant"
    tenant: str

    @property
    def record_id(self) -> str:
        """The name."""
        return self.tenant


class NamespaceRecord(Record):
    """A namespace, `tenant/namespace`; created with its first topic."""

    kind: ClassVar[str] = "namespace"
    namespace: str

    @property
    def record_id(self) -> str:
        """`tenant/namespace`."""
        return self.namespace


class TopicRecord(Record):
    """A topic by its full name. A partitioned topic has `partitions`; each partition is a topic of its own.

    `partition_of` is the full name of the partitioned topic that this one is a partition of.
    """

    kind: ClassVar[str] = "topic"
    name: str
    topic_id: str
    partitions: int | None = None
    partition_of: str | None = None
    created_at: datetime

    @property
    def record_id(self) -> str:
        """The full name."""
        return self.name


class SchemaRecord(Record):
    """One version of a topic's schema in Pulsar's form; `name` is the full name of the (partitioned) topic."""

    kind: ClassVar[str] = "schema"
    name: str
    topic_id: str
    version: int
    type: str
    data: str
    properties: dict[str, str] = {}

    @property
    def record_id(self) -> str:
        """By topic, in the order of versions."""
        return f"{self.topic_id}/{self.version:020d}"


class IncarnationRecord(Record):
    """A broker incarnation's state: a ledger of an incarnation that is not CLOSED may be open."""

    kind: ClassVar[str] = "incarnation"
    incarnation: str
    state: Literal["OPEN", "IN_RECOVERY", "CLOSED"]

    @property
    def record_id(self) -> str:
        """The incarnation's id."""
        return self.incarnation


class LedgerRecord(Record):
    """A ledger in a topic's chain (the chain is the topic's ledgers by id).

    An attached ledger (`incarnation` None, written by Spark) is never open and ends at its last segment. A broker's
    ledger is open until `closed`, or until its incarnation is CLOSED.
    """

    kind: ClassVar[str] = "ledger"
    topic_id: str
    ledger_id: int
    incarnation: str | None = None
    closed: bool = False
    created_at: datetime

    @property
    def record_id(self) -> str:
        """By topic, in the order of the chain."""
        return f"{self.topic_id}/{self.ledger_id:020d}"


class FileRecord(Record):
    """A sealed segment file and where its copies are.

    The checksum ranges tile the whole file: one for magic and schema, one a record batch, one for the footer. Up to
    16 batches they stand here; above that in a sidecar file beside each copy, whose length and CRC32C stand here.
    """

    kind: ClassVar[str] = "file"
    file_id: str
    write_id: str
    copies: tuple[int, ...]
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


class SegmentRecord(Record):
    """Entries [first_entry, first_entry + entries) of a ledger, in batches [first_batch, ...) of a file.

    `entry_offset` is added to the file's `entry_id` column to get entry ids (the first entry for files that Spark
    wrote, 0 for files written when ids were known). `batch_entries` counts the entries of each batch; an entry never
    spans two. `entry_rows` is the run-length list [[entries, messages of each], ...] in entry order. `bytes` counts
    key and value bytes. Publish times are milliseconds since 1970.
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

    `decided_at` is the committer's clock, by which verdicts that are no longer needed are cleared away.
    """

    kind: ClassVar[str] = "write"
    write_id: str
    status: Literal["committed", "aborted"]
    decided_at: datetime | None = None

    @property
    def record_id(self) -> str:
        """The write's id."""
        return self.write_id


class SlotOwner(BaseModel):
    """Slots of a subscription held by one consumer under one epoch (`consumer` None: free).

    `start_*` is the position at which the epoch began: it stands until a cursor row of this epoch or a later one
    exists. With it an owner, its epoch and its position change in one commit, and no late row of an earlier owner
    counts.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    consumer: str | None
    epoch: int
    start_ledger: int
    start_entry: int
    slots: tuple[int, ...]


class SubscriptionRecord(Record):
    """A subscription on one topic (one partition), the face that owns it and, within Spark, who holds which slot.

    Exclusive and Failover have the one slot 0, Shared and Key_Shared have 64. `start_*` is the position at creation
    or at the last reset, which also set `start_epoch`: cursor rows of an older epoch no longer count.
    """

    kind: ClassVar[str] = "subscription"
    topic_id: str
    name: str
    type: Literal["Exclusive", "Failover", "Shared", "Key_Shared"]
    face: Literal["spark", "broker"] | None = "spark"
    owners: tuple[SlotOwner, ...] = ()
    start_ledger: int
    start_entry: int
    start_epoch: int
    expires_after_s: float | None = None
    created_at: datetime

    @property
    def record_id(self) -> str:
        """By topic, then name."""
        return f"{self.topic_id}/{self.name}"
