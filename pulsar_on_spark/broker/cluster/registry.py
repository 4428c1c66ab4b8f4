"""The registration of this broker, by which other brokers find it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from urllib.parse import urlsplit

from pulsar_on_spark.metadata.features import FEATURES
from pulsar_on_spark.metadata.records import BrokerRecord, ListenerUrls
from pulsar_on_spark.metadata.store import MetadataStore
from pulsar_on_spark.model.ids import IncarnationId
from pulsar_on_spark.security.listeners import Listener, Listeners
from pulsar_on_spark.topic.catalog.brokers import decide_deregister, decide_register


class Registry:
    """The registration of this broker.

    Args:
        store: The root's metadata.
        incarnation: The id of the broker's incarnation whose journal has the cursor records.
        listeners: The broker's URLs, by listener.

    Attributes:
        record: The registration, as it is or will be committed.
    """

    def __init__(self, store: MetadataStore, incarnation: IncarnationId, listeners: Listeners) -> None:
        self._store = store
        self.record = BrokerRecord(
            broker=broker_id(listeners),
            incarnation=incarnation,
            default_listener=_urls(listeners.default),
            listeners={name: _urls(listener) for name, listener in listeners.named.items()},
            host=socket.gethostname(),
            version=version("pulsar-on-spark"),
            features=tuple(sorted(FEATURES)),
            started_at=datetime.now(UTC),
        )

    async def register(self) -> None:
        """Register the broker; the registration replaces an earlier one with the same id.

        Raises:
            MetadataError: the registration could not be committed.
        """
        await asyncio.to_thread(self._store.commit, lambda _: decide_register(self.record))

    async def drain(self) -> None:
        """Mark the broker as draining: it takes no more bundles (errors as `register`)."""
        self.record = self.record.model_copy(update={"state": "draining"})
        await self.register()

    async def deregister(self) -> None:
        """Remove the registration from the metadata (errors as `register`)."""
        await asyncio.to_thread(self._store.commit, lambda view: decide_deregister(view, self.record.incarnation))


def broker_id(listeners: Listeners) -> str:
    """Return the id of a broker: `host:port` of its HTTP server, or of its binary port if it serves no HTTP."""
    return urlsplit(listeners.default.any_web_url or listeners.default.any_service_url).netloc


def listener_of(record: BrokerRecord, name: str) -> Listener | None:
    """Return the URLs of a broker's named listener, or of its default one for ""; None if it has no such listener."""
    urls = record.listeners.get(name) if name else record.default_listener
    return None if urls is None else Listener(urls.service_url, urls.service_url_tls, urls.web_url, urls.web_url_tls)


def _urls(listener: Listener) -> ListenerUrls:
    return ListenerUrls(**asdict(listener))
