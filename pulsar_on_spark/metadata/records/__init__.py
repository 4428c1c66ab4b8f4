"""The typed records of the main table: one class per kind, each with its record id.

A record is a frozen pydantic model. The fields in `COLUMN_FIELDS` are stored in columns of their own, so that SQL can
use them. All other fields are in the JSON column `body`. Unknown fields of later versions are kept, because the models
keep extra fields and folding copies rows unchanged.
"""

from __future__ import annotations

from pulsar_on_spark.metadata.records.brokers import BrokerRecord, BundleOwner, BundlesRecord, ListenerUrls
from pulsar_on_spark.metadata.records.journals import (
    GivenUpFrames,
    IncarnationRecord,
    JournalFragment,
    LostEntries,
    SealRecord,
)
from pulsar_on_spark.metadata.records.ledgers import (
    CompactedFile,
    CompactionRecord,
    FileRecord,
    LedgerRecord,
    SegmentRecord,
    WriteRecord,
    WriterRecord,
)
from pulsar_on_spark.metadata.records.permissions import PermissionsRecord
from pulsar_on_spark.metadata.records.record import COLUMN_FIELDS, Record
from pulsar_on_spark.metadata.records.root import IdsRecord, IsolationRecord, PathRecord, RootRecord, SettingsRecord
from pulsar_on_spark.metadata.records.subscriptions import SlotOwner, SubscriptionRecord
from pulsar_on_spark.metadata.records.topics import (
    CursorMark,
    DedupRecord,
    HistoryMark,
    HistoryRecord,
    HistoryTableRecord,
    NamespaceRecord,
    SchemaRecord,
    TenantRecord,
    TopicRecord,
    TrimRecord,
)

__all__ = [
    "COLUMN_FIELDS",
    "BrokerRecord",
    "BundleOwner",
    "BundlesRecord",
    "CompactedFile",
    "CompactionRecord",
    "CursorMark",
    "DedupRecord",
    "FileRecord",
    "GivenUpFrames",
    "HistoryMark",
    "HistoryRecord",
    "HistoryTableRecord",
    "IdsRecord",
    "IncarnationRecord",
    "IsolationRecord",
    "JournalFragment",
    "LedgerRecord",
    "ListenerUrls",
    "LostEntries",
    "NamespaceRecord",
    "PathRecord",
    "PermissionsRecord",
    "Record",
    "RootRecord",
    "SchemaRecord",
    "SealRecord",
    "SegmentRecord",
    "SettingsRecord",
    "SlotOwner",
    "SubscriptionRecord",
    "TenantRecord",
    "TopicRecord",
    "TrimRecord",
    "WriteRecord",
    "WriterRecord",
]
