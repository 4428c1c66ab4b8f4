"""The brokers of a root, and the bundles of topics that each of them owns."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pulsar_on_spark.metadata.records.record import Record


class ListenerUrls(BaseModel):
    """The URLs of one advertised listener; "" for a URL that the listener does not have."""

    model_config = ConfigDict(frozen=True, extra="allow")
    service_url: str = ""
    service_url_tls: str = ""
    web_url: str = ""
    web_url_tls: str = ""


class BrokerRecord(Record):
    """The registration of a running broker. The broker commits it, and the first process that sees its end deletes it.

    Attributes:
        broker: The broker's id, `host:port` of its HTTP server.
        incarnation: The incarnation with the broker's cursors, new at each start. The broker counts as alive as long as
            this incarnation is OPEN.
        default_listener: The URLs for clients that name no listener.
        listeners: The URLs of its advertised listeners, by name.
        host: The host's name.
        version: The version of pulsar_on_spark that the broker runs.
        features: The features of roots that the broker knows.
        state: `draining` if the broker takes no more bundles, because it is about to end.
        started_at: The time of the start.
    """

    kind: ClassVar[str] = "broker"
    broker: str
    incarnation: str
    default_listener: ListenerUrls
    listeners: dict[str, ListenerUrls] = Field(default_factory=dict)
    host: str
    version: str
    features: tuple[str, ...]
    state: Literal["serving", "draining"] = "serving"
    started_at: datetime

    @property
    def record_id(self) -> str:
        """The broker's id."""
        return self.broker


class BundleOwner(BaseModel):
    """The owner of one bundle.

    Attributes:
        incarnation: The owning broker's `BrokerRecord.incarnation`; None for no owner. An incarnation that is not OPEN
            does not count as an owner.
        epoch: Number of changes of ownership.
        since: The time of the last change of ownership; None before the first change.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    incarnation: str | None = None
    epoch: int = 0
    since: datetime | None = None


class BundlesRecord(Record):
    """The bundles of a namespace.

    Attributes:
        namespace: `tenant/namespace`.
        boundaries: The boundaries of the bundles' hash ranges, ascending from 0 to 2**32 - 1. Bundle i has the hashes
            [boundaries[i], boundaries[i + 1]); the last bundle includes its upper boundary.
        owners: The owner of each bundle.
    """

    kind: ClassVar[str] = "bundles"
    namespace: str
    boundaries: tuple[int, ...]
    owners: tuple[BundleOwner, ...]

    @property
    def record_id(self) -> str:
        """`tenant/namespace`."""
        return self.namespace
