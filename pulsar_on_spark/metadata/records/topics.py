"""Tenants, namespaces and topics, and what is known of a topic beside its entries."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pulsar_on_spark.metadata.records.record import Record


class TenantRecord(Record):
    """A tenant; created with its first namespace. Roles and clusters are kept as Pulsar's administrators give them."""

    kind: ClassVar[str] = "tenant"
    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()

    @property
    def record_id(self) -> str:
        """The name."""
        return self.tenant


class NamespaceRecord(Record):
    """A namespace, `tenant/namespace`; created with its first topic. For `policies` see `topic.catalog.policies`."""

    kind: ClassVar[str] = "namespace"
    namespace: str
    policies: dict[str, JsonValue] = Field(default_factory=dict)
    properties: dict[str, str] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """`tenant/namespace`."""
        return self.namespace


class TopicRecord(Record):
    """A topic by its full name. A partitioned topic has `partitions`; each partition is a topic of its own.

    `partition_of` is the full name of the partitioned topic that this one is a partition of. `topic_epoch` grows with
    each exclusive producer of the broker. `terminated` is set when the topic takes nothing any more: ledger and entry
    of its last message, (-1, -1) if there is none. A partitioned topic's `policies` (see `topic.catalog.policies`) and
    `properties` are those of its partitions, too.
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
    """One version of a topic's schema in Pulsar's form; `name` is the full name of the (partitioned) topic.

    `created_at` is None in versions that were stored before it was. `is_deletion` marks a number that is no schema:
    those before it are deleted, and count only for messages that were written with them.
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
        """By topic, in the order of versions."""
        return f"{self.topic_id}/{self.version:020d}"


class DedupRecord(Record):
    """What a broker knew of a topic's producers: the last sequence id of each name, of all entries before a place.

    `positions` says the same of clusters whose replicators send: the ledger and entry there of the last entry of each.
    It may be any number of entries old; whoever goes on from it replays the entries from (`ledger`, `entry`) on.
    Committed under the `seal` key of the incarnation that had the topic.
    """

    kind: ClassVar[str] = "dedup"
    topic_id: str
    ledger: int
    entry: int
    sequence_ids: dict[str, int]
    positions: dict[str, tuple[int, int]] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """One for each topic."""
        return self.topic_id


class CursorMark(BaseModel):
    """Where the slowest slot of a subscription that Spark reads stood when a trimmer looked."""

    model_config = ConfigDict(frozen=True, extra="allow")
    subscription: str
    ledger: int
    entry: int
    seen_at: datetime


class TrimRecord(Record):
    """What was trimmed of a topic, and what its trimmer remembers; committed under the topic's key.

    Attributes:
        topic_id: The topic, or partition.
        trimmed_ledger: With `trimmed_entry` the end of what was trimmed: every entry before is gone, on purpose.
        trimmed_entry: See there; (0, 0) if nothing was.
        truncated_ledger: With `truncated_entry` the end of what goes whatever retention says, once nobody needs it.
        truncated_entry: See there.
        marks: Of each subscription that Spark reads, by time.
    """

    kind: ClassVar[str] = "trim"
    topic_id: str
    trimmed_ledger: int = 0
    trimmed_entry: int = 0
    truncated_ledger: int = 0
    truncated_entry: int = 0
    marks: tuple[CursorMark, ...] = ()

    @property
    def record_id(self) -> str:
        """One for each topic."""
        return self.topic_id
