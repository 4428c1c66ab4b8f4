"""Handlers of lookups: a topic's broker, its number of partitions, the topics of a namespace."""

from __future__ import annotations

from functools import partial
from typing import Final

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.runtime.access import Operation
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.broker.topics.topic_lists import SYSTEM_NAMESPACE, Mode, list_topics
from pulsar_on_spark.model.errors import InvalidArgumentError
from pulsar_on_spark.model.names import TopicName
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    ServerError,
)


def topic_name(text: str) -> TopicName:
    """Parse a topic name that a client sent.

    Raises:
        ServerRefusalError: the name is invalid in Pulsar.
    """
    try:
        return TopicName.parse_any(text)
    except InvalidArgumentError as error:
        raise ServerRefusalError(ServerError.InvalidTopicName, str(error)) from error


async def lookup(services: Services, connection: Connection, command: CommandLookupTopic) -> None:
    """Handle LOOKUP: return the broker's URLs, without creating the topic: Java also looks up regular expressions."""
    authorize(services, connection, Operation.LOOKUP, topic_name(command.topic))
    urls = services.listener(command.advertised_listener_name)
    connection.write(
        replies.lookup_response(command.request_id, urls.service_url or None, urls.service_url_tls or None)
    )


async def partitioned_metadata(
    services: Services, connection: Connection, command: CommandPartitionedTopicMetadata
) -> None:
    """Handle PARTITIONED_METADATA: creates a missing topic only if auto-creation makes partitioned topics."""
    name = topic_name(command.topic)
    authorize(services, connection, Operation.LOOKUP, name)
    if name.namespace == SYSTEM_NAMESPACE:
        partitions = 0  # clients that look for transaction coordinators find none
    else:
        create = connection.creations if command.metadata_auto_creation_enabled else None
        partitions = await services.topics.partitions(name, create=create)
    connection.write(replies.partition_metadata_response(command.request_id, partitions))


async def topics_of_namespace(services: Services, connection: Connection, command: CommandGetTopicsOfNamespace) -> None:
    """Handle GET_TOPICS_OF_NAMESPACE: list the topics that a client matches with its regular expression."""
    authorize_list(services, connection, command.namespace)
    mode = _MODES[command.mode]
    async with connection.large_answers.turn():
        names = await services.topics.names()
        found = list_topics(names, command.namespace, mode, command.topics_hash)
        connection.write(
            replies.get_topics_of_namespace_response(
                command.request_id, found.topics, found.topics_hash, filtered=False, changed=found.changed
            )
        )


def authorize(services: Services, connection: Connection, operation: Operation, topic: TopicName) -> None:
    """Require that the client may do an operation.

    Raises:
        AccessDeniedError: the client may not.
    """
    assert connection.principal is not None, "nothing comes before CONNECT"
    services.access.authorize(connection.principal, operation, topic)


def authorize_list(services: Services, connection: Connection, namespace: str) -> None:
    """Require that the client may list the topics of a namespace.

    Raises:
        AccessDeniedError: the client may not list them.
    """
    assert connection.principal is not None, "nothing comes before CONNECT"
    services.access.authorize_list(connection.principal, namespace)


_MODES: Final[dict[int, Mode]] = {
    CommandGetTopicsOfNamespace.PERSISTENT: "PERSISTENT",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "NON_PERSISTENT",
    CommandGetTopicsOfNamespace.ALL: "ALL",
}


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of lookups."""
    return {
        BaseCommand.LOOKUP: Request(partial(lookup, services), replies.lookup_failed),
        BaseCommand.GET_TOPICS_OF_NAMESPACE: Request(partial(topics_of_namespace, services)),
        BaseCommand.PARTITIONED_METADATA: Request(
            partial(partitioned_metadata, services), replies.partition_metadata_failed
        ),
    }
