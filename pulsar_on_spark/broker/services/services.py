"""The broker's parts that the handlers of commands, HTTP and metrics use; `Broker` assembles them."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.broker.background.housekeeping import Housekeeping
from pulsar_on_spark.broker.background.offload import Offloads
from pulsar_on_spark.broker.cluster.balancer import Balancer
from pulsar_on_spark.broker.cluster.handover import Handover
from pulsar_on_spark.broker.cluster.ownership import Ownership
from pulsar_on_spark.broker.cluster.registry import listener_of
from pulsar_on_spark.broker.cluster.takeover import Takeover
from pulsar_on_spark.broker.observe.overview import Overview
from pulsar_on_spark.broker.observe.stored import Stored
from pulsar_on_spark.broker.producing.producers import ProducerNames
from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.access import Access
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.ports import PortNumbers
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.slow_refusals import SlowRefusals
from pulsar_on_spark.broker.runtime.tls import BrokerTls
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.schemas import ClientSchemas
from pulsar_on_spark.broker.topics.topic_parts import TopicParts
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.root import Root
from pulsar_on_spark.security.audit_log import Audit
from pulsar_on_spark.security.listeners import Listener, Listeners
from pulsar_on_spark.security.meter import AuthenticationMeter


@dataclass(slots=True)
class Services:
    """The broker's parts.

    Attributes:
        root: The open root.
        given: The settings that the broker was started with.
        settings: The settings in force, with changes at run time (see `settings_changes`).
        ports: The broker's ports.
        listeners: The broker's URLs.
        tls: The broker's TLS; None if no port has it.
        access: The authentication and authorization of clients.
        authentications: The counts of clients' authentications.
        audit: The audit log of logins, refusals and changes.
        slow_refusals: Delays the answers to clients that fail to authenticate too often.
        views: The views of the root's metadata.
        ownership: The owners of bundles: the brokers that serve topics.
        handover: The handover of this broker's bundles to others.
        balancer: The automatic handover, because of isolation policies or this broker's load.
        takeover: The recovery of dead brokers' journals.
        topics: The broker's topics.
        topic_parts: The broker's parts that all topics use.
        schemas: The schemas of topics.
        reader: The reader of entries.
        path: The way of entries into the journals.
        journals: The broker's journals.
        names: Generates names for producers that have none.
        overview: Statistics of topics.
        watch: Notifies clients of topics that are created and deleted.
        stored: The periodically refreshed state of storage.
        housekeeping: The broker's periodic passes of maintenance.
        offloads: Offloads that clients request.
    """

    root: Root
    given: BrokerSettings
    settings: BrokerSettings
    ports: PortNumbers
    listeners: Listeners
    tls: BrokerTls | None
    access: Access
    authentications: AuthenticationMeter
    audit: Audit
    slow_refusals: SlowRefusals
    views: Views
    ownership: Ownership
    handover: Handover
    balancer: Balancer
    takeover: Takeover
    topics: Topics
    topic_parts: TopicParts
    schemas: ClientSchemas
    reader: EntryReader
    path: PublishPath
    journals: Journals
    names: ProducerNames
    overview: Overview
    watch: TopicWatch
    stored: Stored
    housekeeping: Housekeeping
    offloads: Offloads

    @property
    def service_url(self) -> str:
        """The broker's URL for Pulsar's clients, in stats and lists."""
        return self.listeners.default.any_service_url

    async def listener_of_topic(self, topic: TopicName, name: str) -> Listener:
        """Return the URLs of the broker that serves a topic, for a client.

        Args:
            topic: The topic, which need not exist.
            name: The advertised listener that the client requests; "" for the default one.

        Raises:
            ServerRefusalError: the topic's broker has no such listener, or the topic has no broker for now; the code is
                ServiceNotReady, as in Pulsar.
            MetadataError: the metadata cannot be read or written.
        """
        owner = await self.ownership.find_owner(topic)
        urls = listener_of(owner, name)
        if urls is None:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"Broker {owner.broker} has no advertised listener {name!r}: leave the client's listener name out.",
            )
        return urls
