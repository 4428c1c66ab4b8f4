"""The root: its identity, its storage paths, its settings, and the counter of its ledgers."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from pulsar_on_spark.metadata.records.record import Record
from pulsar_on_spark.storage.health import PathRole, PathState


class RootRecord(Record):
    """Identity and quorum of the root.

    Attributes:
        format_version: The version of the stored formats.
        cluster_id: The id of the root's cluster, which is also in the identities of its storage paths.
        quorum: The default quorum of topics.
        features: By name, the features that a program must know in addition to the format version: "read" if it must
            know the feature to read the root, "write" if only to write to the root (docs/adr/0018).
    """

    kind: ClassVar[str] = "root"
    format_version: int
    cluster_id: str
    quorum: str
    features: dict[str, Literal["read", "write"]] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """A constant: there is only one root record."""
        return "root"


class PathRecord(Record):
    """A storage path. `uri` is relative to the root for paths inside it, else absolute.

    Attributes:
        path_id: The path's number. It is never used again, because a retired path keeps its record.
        uri: The path's directory or URL.
        profile: The name of the object store profile for a URL outside the root; "" for the profile that matches the
            URL, if any.
        host: The host on whose disk a directory is; "" for a directory of a local root.
        role: The kinds of files that the path is for: segments, journals, or both; only offloaded segments ("cold"); or
            only history tables.
        state: The path's state; `topic.maintenance.repair.storage_paths` has the rules of its changes.
        label: The path's failure domain, for example its rack. Copies of a file are put under different labels.
        reason: The failure because of which a write or an audit made the path read-only; "" if there was none.
        failed_at: The time of the failure, on the clock of the process that found it.
        check_since: The time at which a failed path became usable again. Its copies do not count until all of them were
            read in full. None if its copies count.
        claims: The tokens that the claim of a cold or history path may have, the oldest first; empty for a path that
            was never changed (`topic.maintenance.files.claims`).
    """

    kind: ClassVar[str] = "path"
    path_id: int
    uri: str
    profile: str = ""
    host: str = ""
    role: PathRole = "both"
    state: PathState = "writable"
    label: str = ""
    reason: str = ""
    failed_at: datetime | None = None
    check_since: datetime | None = None
    claims: tuple[str, ...] = ()

    @property
    def record_id(self) -> str:
        """The path's number."""
        return str(self.path_id)


class IdsRecord(Record):
    """The counter of ledger ids; `next_ledger_id` is the first free id."""

    kind: ClassVar[str] = "ids"
    next_ledger_id: int

    @property
    def record_id(self) -> str:
        """A constant: there is only one counter."""
        return "ledger"


class IsolationRecord(Record):
    """A namespace isolation policy.

    Attributes:
        name: The policy's name.
        policy: The policy, in the JSON of Pulsar's admin API.
    """

    kind: ClassVar[str] = "isolation"
    name: str
    policy: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """The policy's name."""
        return self.name


class SettingsRecord(Record):
    """Broker settings that operators changed at run time. Brokers that start later use them, too.

    Attributes:
        values: The settings by name, as operators gave them.
        policies: The policies that result from the settings, for topics without policies of their own or of their
            namespace, in the form of `TopicRecord.policies`.
    """

    kind: ClassVar[str] = "settings"
    values: dict[str, str] = Field(default_factory=dict)
    policies: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def record_id(self) -> str:
        """A constant: there is only one settings record."""
        return "settings"
