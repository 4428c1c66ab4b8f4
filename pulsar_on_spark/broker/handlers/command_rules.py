"""The rule of each command: the operations that a client must be allowed to do before the command is carried out.

Every handled command has a rule here: `guarded` and `unguarded` check this. A command on a producer or consumer names
it by an id that is valid only on the client's connection. Such a command cannot reach producers or consumers of other
clients, and needs no permission. SEEK, which also works for a consumer that the broker has disconnected, is authorized
by its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request, Signal
from pulsar_on_spark.broker.producing.replicated import is_replicator
from pulsar_on_spark.broker.runtime.access import authorize
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.metadata.records import NamespaceRecord
from pulsar_on_spark.model.errors import InvalidArgumentError, TopicNotFoundError
from pulsar_on_spark.model.names import TopicName, check_namespace
from pulsar_on_spark.protocol.commands import BaseCommand, CommandProducer, ServerError
from pulsar_on_spark.security.operations import (
    NamespaceOperation,
    Operation,
    Resource,
    SuperUserOperation,
    TopicOperation,
)
from pulsar_on_spark.security.rules import NotAuthorizedError

Required = tuple[Operation, Resource]
"""An operation that a client must be allowed to do, and its resource."""


class CommandRule(NamedTuple):
    """The rule of a command.

    Attributes:
        requires: Returns, for a command, the operations and resources that the client must be allowed.
        refusal: Pulsar's message for a client that is not allowed to do them.
        shows_missing_namespace: True if a missing namespace is also reported to a client without permission, as the
            tests of official clients expect.
    """

    requires: Callable[[Any], Iterator[Required]]
    refusal: str = ""
    shows_missing_namespace: bool = False


def topic_name(text: str) -> TopicName:
    """Return the topic name in a text that a client sent.

    Raises:
        ServerRefusalError: the name is invalid in Pulsar.
    """
    try:
        return TopicName.parse_any(text)
    except InvalidArgumentError as error:
        raise ServerRefusalError(ServerError.InvalidTopicName, str(error)) from error


def _nothing(_: object) -> Iterator[Required]:
    return iter(())


def _on_topic(operation: TopicOperation) -> Callable[[Any], Iterator[Required]]:
    def requires(command: Any) -> Iterator[Required]:
        yield operation, Resource.of_topic(topic_name(command.topic))

    return requires


def _produces(command: CommandProducer) -> Iterator[Required]:
    name = topic_name(command.topic)
    yield TopicOperation.PRODUCE, Resource.of_topic(name)
    if is_replicator(command.producer_name):
        yield SuperUserOperation.REPLICATE, Resource.of_topic(name)
    if command.initial_subscription_name:
        yield TopicOperation.SUBSCRIBE, Resource.of_topic(name, command.initial_subscription_name)


def _consumes(command: Any) -> Iterator[Required]:
    yield TopicOperation.CONSUME, Resource.of_topic(topic_name(command.topic), command.subscription)


def _lists(command: Any) -> Iterator[Required]:
    yield NamespaceOperation.GET_TOPICS, Resource.of_namespace(check_namespace(command.namespace))


ANY: Final = CommandRule(_nothing)
"""Every client may send the command, which concerns only its own connection."""
OWN: Final = CommandRule(_nothing)
"""Every client may send the command for a producer, consumer or watcher of its own connection."""
REFUSED: Final = CommandRule(_nothing)
"""The command is refused, whatever the client's role."""

GUARDS: Final[Mapping[int, CommandRule]] = {
    BaseCommand.CONNECT: ANY,
    BaseCommand.AUTH_RESPONSE: ANY,
    BaseCommand.PING: ANY,
    BaseCommand.PONG: ANY,
    BaseCommand.LOOKUP: CommandRule(
        _on_topic(TopicOperation.LOOKUP), "Client is not authorized to Lookup", shows_missing_namespace=True
    ),
    BaseCommand.PARTITIONED_METADATA: CommandRule(
        # The command may create the topic. A client that may look up may also produce or consume,
        # which creates topics, too.
        _on_topic(TopicOperation.LOOKUP),
        "Client is not authorized to Get Partition Metadata",
        shows_missing_namespace=True,
    ),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: CommandRule(_lists, "Client is not authorized to GetTopicsOfNamespace"),
    BaseCommand.WATCH_TOPIC_LIST: CommandRule(_lists, "Client is not authorized to watchTopicList"),
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: OWN,
    BaseCommand.GET_SCHEMA: CommandRule(_on_topic(TopicOperation.LOOKUP), "Client is not authorized to GetSchema"),
    BaseCommand.GET_OR_CREATE_SCHEMA: CommandRule(
        _on_topic(TopicOperation.PRODUCE), "Client is not authorized to GetOrCreateSchema"
    ),
    BaseCommand.PRODUCER: CommandRule(_produces, "Client is not authorized to Produce"),
    BaseCommand.SEND: OWN,
    BaseCommand.CLOSE_PRODUCER: OWN,
    BaseCommand.SUBSCRIBE: CommandRule(_consumes, "Client is not authorized to subscribe"),
    BaseCommand.FLOW: OWN,
    BaseCommand.ACK: OWN,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: OWN,
    BaseCommand.SEEK: OWN,
    BaseCommand.GET_LAST_MESSAGE_ID: OWN,
    BaseCommand.CONSUMER_STATS: OWN,
    BaseCommand.UNSUBSCRIBE: OWN,
    BaseCommand.CLOSE_CONSUMER: OWN,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: REFUSED,
    BaseCommand.NEW_TXN: REFUSED,
    BaseCommand.ADD_PARTITION_TO_TXN: REFUSED,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: REFUSED,
    BaseCommand.END_TXN: REFUSED,
}


def guarded(services: Services, requests: Mapping[int, Request[Connection]]) -> dict[int, Request[Connection]]:
    """Return handlers that authorize the client before the given handlers carry out a request, by type of command.

    Raises:
        KeyError: a command has no rule.
    """
    return {type_: _guarded(services, GUARDS[type_], request) for type_, request in requests.items()}


def unguarded(signals: Mapping[int, Signal[Connection]]) -> dict[int, Signal[Connection]]:
    """Check that the commands of handlers of signals need no permission; return the handlers by type of command.

    Raises:
        KeyError: a command has no rule, or its rule requires a permission.
    """
    free = {type_ for type_, rule in GUARDS.items() if rule.requires is _nothing}
    if missing := signals.keys() - free:
        raise KeyError(*missing)
    return dict(signals)


def _guarded(services: Services, rule: CommandRule, request: Request[Connection]) -> Request[Connection]:
    if rule.requires is _nothing:
        return request

    async def handle(connection: Connection, command: Any) -> None:
        require(services, connection, rule, command)
        await request.handle(connection, command)

    return request._replace(handle=handle)


def require_still(services: Services, connection: Connection, type_: int, command: Any) -> None:
    """Check that the client is still allowed to do a command of a type, after the command's handler has waited.

    Handlers call this before they read a large answer, and in the same turn of the event loop in which they register a
    producer, consumer or watcher. So a permission that is revoked meanwhile is noticed either here or by `Recheck`.

    Raises:
        NotAuthorizedError: the client is not allowed.
    """
    require(services, connection, GUARDS[type_], command)


def require(services: Services, connection: Connection, rule: CommandRule, command: Any) -> None:
    """Check that the client is allowed to do a command by the command's rule, and audit a refusal.

    Raises:
        NotAuthorizedError: the client is not allowed.
        TopicNotFoundError: the client is not allowed, and the topic's namespace does not exist.
    """
    assert connection.principal is not None, "nothing comes before CONNECT"
    for operation, resource in rule.requires(command):
        try:
            authorize(services.access, connection.principal, operation, resource)
        except NotAuthorizedError as error:
            if rule.shows_missing_namespace and services.views.recent.get(NamespaceRecord, resource.namespace) is None:
                raise TopicNotFoundError(
                    f"Topic {resource.topic} does not exist, nor does its namespace: check the name."
                ) from error
            services.audit.note_refusal(
                connection.address, connection.principal, operation.name, str(resource), reason=str(error)
            )
            is_for_name = operation is SuperUserOperation.REPLICATE  # the client may do it under another name
            raise NotAuthorizedError(str(error) if is_for_name else rule.refusal, error.status) from error
