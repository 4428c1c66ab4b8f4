"""Handlers of lookups: a topic's broker, its number of partitions, the topics of a namespace."""

from __future__ import annotations

from functools import partial
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.handlers.command_rules import require_still, topic_name
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.topic_lists import Mode, list_topics
from pulsar_on_spark.model.names import SYSTEM_NAMESPACE
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
)


async def lookup(services: Services, connection: Connection, command: CommandLookupTopic) -> None:
    """Handle LOOKUP: return the URLs of the topic's broker. No topic is created: Java clients also look up patterns."""
    urls = await services.listener_of_topic(topic_name(command.topic), command.advertised_listener_name)
    connection.write(
        replies.lookup_response(command.request_id, urls.service_url or None, urls.service_url_tls or None)
    )


async def partitioned_metadata(
    services: Services, connection: Connection, command: CommandPartitionedTopicMetadata
) -> None:
    """Handle PARTITIONED_METADATA; a missing topic is created only if auto-creation makes partitioned topics."""
    name = topic_name(command.topic)
    if name.namespace == SYSTEM_NAMESPACE:
        partitions = 0  # clients that look for transaction coordinators find none
    else:
        create = connection.creations if command.metadata_auto_creation_enabled else None
        partitions = await services.topics.partitions(name, create=create)
    connection.write(replies.partition_metadata_response(command.request_id, partitions))


async def topics_of_namespace(services: Services, connection: Connection, command: CommandGetTopicsOfNamespace) -> None:
    """Handle GET_TOPICS_OF_NAMESPACE: list the topics that a client matches with its regular expression."""
    mode = _MODES[command.mode]
    async with connection.large_answers.turn():
        require_still(services, connection, BaseCommand.GET_TOPICS_OF_NAMESPACE, command)
        names = await services.topics.names()
        listed = list_topics(names, command.namespace, mode, command.topics_hash)
        connection.write(
            replies.get_topics_of_namespace_response(
                command.request_id, listed.topics, listed.topics_hash, filtered=False, changed=listed.changed
            )
        )


_MODES: Final[dict[int, Mode]] = {
    CommandGetTopicsOfNamespace.PERSISTENT: "PERSISTENT",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "NON_PERSISTENT",
    CommandGetTopicsOfNamespace.ALL: "ALL",
}


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of lookups, by type of command."""
    return {
        BaseCommand.LOOKUP: Request(partial(lookup, services), replies.lookup_failed),
        BaseCommand.GET_TOPICS_OF_NAMESPACE: Request(partial(topics_of_namespace, services)),
        BaseCommand.PARTITIONED_METADATA: Request(
            partial(partitioned_metadata, services), replies.partition_metadata_failed
        ),
    }
