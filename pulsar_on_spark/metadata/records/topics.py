"""Records of tenants, namespaces and topics, and a topic's schemas, deduplication, history and trimming."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pulsar_on_spark.metadata.records.record import Record


class TenantRecord(Record):
    """A tenant, created with its first namespace. `admin_roles` may administer it; `allowed_clusters` has no effect."""

    kind: ClassVar[str] = "tenant"
    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()

    @property
    def record_id(self) -> str:
        """The tenant's name."""
        return self.tenant


class NamespaceRecord(Record):
    """A namespace, `tenant/namespace`, created with its first topic; `topic.catalog.policies` describes `policies`."""

    kind: ClassVar[str] = "namespace"
    namespace: str
    policies: dict[str, JsonValue] = Field(default_factory=dict)
    properties: dict[str, str] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """`tenant/namespace`."""
        return self.namespace


class TopicRecord(Record):
    """A topic with its full name. A partitioned topic has `partitions`; each partition has a record of its own.

    `partition_of` is the full name of the partitioned topic to which a partition belongs. `topic_epoch` grows with each
    exclusive producer of a broker. `terminated` is None, or, if the topic accepts no more messages, (ledger id, entry
    id) of its last message; (-1, -1) if it has no messages. The `policies` (see `topic.catalog.policies`) and
    `properties` of a partitioned topic apply to its partitions, too.
    """

    kind: ClassVar[str] = "topic"
    name: str
    topic_id: str
    partitions: int | None = None
    partition_of: str | None = None
    topic_epoch: int | None = None
    terminated: tuple[int, int] | None = None
    policies: dict[str, JsonValue] = Field(default_factory=dict)
    properties: dict[str, str] = Field(default_factory=dict)
    created_at: datetime

    @property
    def record_id(self) -> str:
        """The full name."""
        return self.name


class SchemaRecord(Record):
    """A version of a topic's schema in Pulsar's form; `name` is the full name of the (partitioned) topic.

    `created_at` is None in versions that older programs stored. A version with `is_deletion` has no schema and deletes
    all earlier versions. Deleted versions are used only to read messages that were written with them.
    """

    kind: ClassVar[str] = "schema"
    name: str
    topic_id: str
    version: int
    type: str
    data: str
    properties: dict[str, str] = Field(default_factory=dict)
    created_at: datetime | None = None
    is_deletion: bool = False

    @property
    def record_id(self) -> str:
        """Topic id and version, which sort in the order of versions."""
        return f"{self.topic_id}/{self.version:020d}"


class DedupRecord(Record):
    """Snapshot of a topic's deduplication: the last sequence id of each producer name before a position.

    For clusters that replicate to the topic, `positions` has (ledger id, entry id) in the source cluster of the last
    entry that was replicated, by cluster. The snapshot may be any number of entries old: its reader replays the topic's
    entries from (`ledger`, `entry`) on. It is committed under the `seal` key of the incarnation that owned the topic.
    """

    kind: ClassVar[str] = "dedup"
    topic_id: str
    ledger: int
    entry: int
    sequence_ids: dict[str, int]
    positions: dict[str, tuple[int, int]] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """The topic's id: a topic has at most one snapshot."""
        return self.topic_id


class HistoryTableRecord(Record):
    """The history table of a topic and its partitions; committed under the topic's key.

    The record is committed before the table is created, and no table name is used twice. So a table that no record
    names is not needed.

    Attributes:
        topic_id: The topic, not a partition.
        table: The folder of the table, relative to the root or its storage path.
        path_id: The storage path with the table; None if the table is in the root itself.
    """

    kind: ClassVar[str] = "history-table"
    topic_id: str
    table: str
    path_id: int | None = None

    @property
    def record_id(self) -> str:
        """The topic's id: a topic has at most one table."""
        return self.topic_id


class HistoryRecord(Record):
    """The part of a topic or partition that is in its history table; committed under the topic's key.

    If a build died between its two commits, the table's own log is one generation ahead. The next build completes it.

    Attributes:
        topic_id: The topic, or partition.
        generation: The number of completed builds, which is the version of the table's app transaction.
        to_ledger: With `to_entry`, the position before which all messages were copied to the table. Missing are only
            messages that the topic had lost before, and messages that the table's own retention has removed.
        to_entry: The entry of that position.
        rows: Number of messages that builds have added.
        bytes: Size of the files that builds have added.
    """

    kind: ClassVar[str] = "history"
    topic_id: str
    generation: int
    to_ledger: int
    to_entry: int
    rows: int = 0
    bytes: int = 0

    @property
    def record_id(self) -> str:
        """The topic's id: a topic has at most one history record."""
        return self.topic_id


class CursorMark(BaseModel):
    """Position of the slowest slot of a Spark subscription, when a trimmer checked it at `seen_at`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    subscription: str
    ledger: int
    entry: int
    seen_at: datetime


class HistoryMark(BaseModel):
    """Position up to which a topic's history was built, when a trimmer last saw it advance, at `seen_at`.

    It exists only while there are more messages to build.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    ledger: int
    entry: int
    seen_at: datetime


class TrimRecord(Record):
    """Progress of trimming a topic, and the state of its trimmer; committed under the topic's key.

    Attributes:
        topic_id: The topic, or partition.
        trimmed_ledger: With `trimmed_entry`, the position before which all entries were deleted on purpose.
        trimmed_entry: The entry of that position; (0, 0) if nothing was trimmed.
        truncated_ledger: With `truncated_entry`, the position before which entries are deleted as soon as no
            subscription needs them, regardless of retention.
        truncated_entry: The entry of that position.
        marks: Cursor marks of all Spark subscriptions, in the order of time.
        history: The mark of the topic's history; None if it is completely built, or if the policies want no history.
    """

    kind: ClassVar[str] = "trim"
    topic_id: str
    trimmed_ledger: int = 0
    trimmed_entry: int = 0
    truncated_ledger: int = 0
    truncated_entry: int = 0
    marks: tuple[CursorMark, ...] = ()
    history: HistoryMark | None = None

    @property
    def record_id(self) -> str:
        """The topic's id: a topic has at most one trim record."""
        return self.topic_id
