"""Handlers of the schema registry's commands."""

from __future__ import annotations

from functools import partial

from pulsar_on_spark.broker.connection.connection import Connection
from pulsar_on_spark.broker.connection.handlers import Request
from pulsar_on_spark.broker.handlers.command_rules import require_still, topic_name
from pulsar_on_spark.broker.services.services import Services
from pulsar_on_spark.protocol import replies
from pulsar_on_spark.protocol.commands import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema


async def get_schema(services: Services, connection: Connection, command: CommandGetSchema) -> None:
    """Handle GET_SCHEMA: return the latest version of the topic's schema, or the requested version."""
    name = topic_name(command.topic)
    async with connection.large_answers.turn():
        require_still(services, connection, BaseCommand.GET_SCHEMA, command)
        schema, version = await services.schemas.find(name, command.schema_version)
        connection.write(replies.get_schema_response(command.request_id, schema, version))


async def get_or_create_schema(services: Services, connection: Connection, command: CommandGetOrCreateSchema) -> None:
    """Handle GET_OR_CREATE_SCHEMA: register a schema as for a producer; the topic must exist, as in Pulsar."""
    name = topic_name(command.topic)
    await services.topics.partitions(name)
    version = await services.schemas.of_producer(name, command.schema)
    connection.write(replies.get_or_create_schema_response(command.request_id, version))


def requests(services: Services) -> dict[int, Request[Connection]]:
    """Return the handlers of the schema registry's commands, by type of command."""
    return {
        BaseCommand.GET_SCHEMA: Request(partial(get_schema, services), replies.get_schema_failed),
        BaseCommand.GET_OR_CREATE_SCHEMA: Request(
            partial(get_or_create_schema, services), replies.get_or_create_schema_failed
        ),
    }
