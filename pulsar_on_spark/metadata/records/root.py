"""The root: what it is, where its files lie, and the counter of its ledgers."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field, JsonValue

from pulsar_on_spark.metadata.records.record import Record
from pulsar_on_spark.storage.health import PathState


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
    """A storage path. `uri` is relative to the root for paths inside it, else absolute.

    Attributes:
        path_id: Its number, never given twice: a retired path keeps its record.
        uri: Where it is.
        state: See `topic.maintenance.repair.storage_paths`.
        label: Its rack; copies of a file are kept apart by it.
        reason: Why a write, or an audit, made it read-only.
        failed_at: When that was, on its finder's clock.
        check_since: When it came back; its copies do not count before they were all read in full. None otherwise.
    """

    kind: ClassVar[str] = "path"
    path_id: int
    uri: str
    state: PathState = "writable"
    label: str = ""
    reason: str = ""
    failed_at: datetime | None = None
    check_since: datetime | None = None

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


class SettingsRecord(Record):
    """What operators changed of its broker's settings while that ran; it holds for the next broker, too.

    Attributes:
        values: By name, as they were given.
        policies: What these mean for topics whose namespace says nothing, as policies of a record.
    """

    kind: ClassVar[str] = "settings"
    values: dict[str, str] = Field(default_factory=dict)
    policies: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """There is one."""
        return "settings"
