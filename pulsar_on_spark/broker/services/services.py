"""The broker's parts that handlers of commands, HTTP and metrics work with, put together by `Broker`."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.broker.background.housekeeping import Housekeeping
from pulsar_on_spark.broker.observe.overview import Overview
from pulsar_on_spark.broker.observe.stored import Stored
from pulsar_on_spark.broker.producing.producers import ProducerNames
from pulsar_on_spark.broker.producing.publishing import PublishPath
from pulsar_on_spark.broker.reading.reader import EntryReader
from pulsar_on_spark.broker.runtime.access import Access
from pulsar_on_spark.broker.runtime.journals import Journals
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.runtime.settings import BrokerSettings
from pulsar_on_spark.broker.runtime.views import Views
from pulsar_on_spark.broker.topics.schemas import ClientSchemas
from pulsar_on_spark.broker.topics.topic import TopicParts
from pulsar_on_spark.broker.topics.topic_watch import TopicWatch
from pulsar_on_spark.broker.topics.topics import Topics
from pulsar_on_spark.protocol.commands import ServerError
from pulsar_on_spark.root import Root


@dataclass(slots=True)
class Services:
    """The broker's parts.

    Attributes:
        root: The root.
        given: The settings that the broker was started with.
        settings: The settings in force, with changes at run time (see `settings_changes`).
        service_url: The URL that clients connect to for any topic: a root has one broker.
        access: Decides which role may do what.
        views: The root's metadata.
        topics: All topics.
        topic_parts: The parts that topics share.
        schemas: The schemas of topics.
        reader: Reads entries.
        path: Publishes entries to the journal.
        journals: The broker's journals.
        names: Names for producers that have none.
        overview: Stats of topics.
        watch: Notifies clients of topics that are created and deleted.
        stored: The state of storage, looked at from time to time.
        housekeeping: The broker's passes of maintenance.
    """

    root: Root
    given: BrokerSettings
    settings: BrokerSettings
    service_url: str
    access: Access
    views: Views
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

    def service_url_of(self, listener: str) -> str:
        """The URL that lookups answer, whichever topic is looked up.

        Args:
            listener: The advertised listener that a client names; "" for none.

        Raises:
            ServerRefusalError: there is no such listener: ServiceNotReady, as in Pulsar.
        """
        if listener:
            raise ServerRefusalError(
                ServerError.ServiceNotReady,
                f"The broker has no listener {listener!r}: leave the client's listener name out.",
            )
        return self.service_url
