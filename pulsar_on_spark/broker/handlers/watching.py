"""Handlers of topic-list watchers, by which a client with a topic pattern gets changes without polling."""

from __future__ import annotations

from functools import partial

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request, Signal
from pulsar_on_spark.broker.handlers.command_rules import require_still
from pulsar_on_spark.broker.runtime.server_errors import ServerRefusalError
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import (
    BaseCommand,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    ServerError,
)


async def watch(services: Services, connection: Connection, command: CommandWatchTopicList) -> None:
    """Handle WATCH_TOPIC_LIST: answer with the matching topics, and register the client for later changes."""
    longest = services.settings.subscription_pattern_max_length
    if len(command.topics_pattern) > longest:
        raise ServerRefusalError(
            ServerError.NotAllowedError,
            f"The pattern has {len(command.topics_pattern)} characters, above the limit of {longest} "
            "(subscription_pattern_max_length): use a shorter pattern, or poll.",
        )
    async with connection.large_answers.turn():
        matching = await services.watch.watch(
            connection, command.watcher_id, command.namespace, command.topics_pattern, command.topics_hash
        )
        try:
            require_still(services, connection, BaseCommand.WATCH_TOPIC_LIST, command)
            connection.write(
                replies.watch_topic_list_success(
                    command.request_id, command.watcher_id, matching.topics, matching.topics_hash
                )
            )
        except BaseException:
            services.watch.unwatch(connection, command.watcher_id)
            raise


def unwatch(services: Services, connection: Connection, command: CommandWatchTopicListClose) -> None:
    """Handle WATCH_TOPIC_LIST_CLOSE, which always succeeds: remove the watcher."""
    services.watch.unwatch(connection, command.watcher_id)
    connection.write(replies.success(command.request_id))


def closed(services: Services, connection: Connection) -> None:
    """Remove the watchers of a connection that has ended."""
    services.watch.unwatch_all(connection)


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handler of WATCH_TOPIC_LIST, by type of command."""
    return {BaseCommand.WATCH_TOPIC_LIST: Request(partial(watch, services))}


def signals(services: Services) -> dict[int, Signal[Connection]]:
    """Return the handler of WATCH_TOPIC_LIST_CLOSE, by type of command."""
    return {BaseCommand.WATCH_TOPIC_LIST_CLOSE: partial(unwatch, services)}
